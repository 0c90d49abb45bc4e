"""Import the histories of LangChain: a table of a database, or lists of Redis.

The shapes are those that `SQLChatMessageHistory` and `RedisChatMessageHistory` of
langchain-community 0.4.2 and `PostgresChatMessageHistory` of langchain-postgres 0.0.19 write: each
message is the JSON of langchain-core's `message_to_dict`.

A history becomes a session whose key is its `session_id`, so that a bot finds it under the same
name. Its messages are converted as `DjangoChatMessageHistory` does, without loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from django.contrib.auth.base_user import AbstractBaseUser
from django.core.exceptions import ObjectDoesNotExist

from chatmemory import codec
from chatmemory.access.actors import user_scope
from chatmemory.access.addresses import check_session_key
from chatmemory.errors import BadInput, ChatMemoryError, NotFound
from chatmemory.formats import Outcome, Target
from chatmemory.imports.conversations import Conversation, Entry, NoMessages, moment, name_of
from chatmemory.imports.files import EMPTY, with_code
from chatmemory.imports.limits import MAX_CONVERSATION, MAX_MESSAGES
from chatmemory.imports.storing import Storing
from chatmemory.langchain.messages import from_dict

MAX_STORINGS = 1_000
"""Owners whose imported sessions are held in memory at a time."""

CHANGED = "Messages of the history were deleted while it was read. Import it again."

OwnerOf = Callable[[str], AbstractBaseUser | str | None]
"""Returns the user of a `session_id`, or a scope such as `server`; None refuses the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message as it is stored."""

    id: str
    """Unique in its history, and the same in each import."""
    text: object
    """JSON, as text or bytes."""
    at: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A history, whose messages are read when they are needed, oldest first.

    Reading them raises Conflict if some were deleted meanwhile, MemoryUnavailable.
    """

    session_id: object
    messages: Iterable[Stored]


class Source(Protocol):
    """Where histories are stored."""

    format: str
    """The beginning of `Session.origin`."""

    def histories(self) -> Iterator[History]:
        """Yield the histories. Raises BadInput, MemoryUnavailable."""
        ...


def import_histories(
    source: Source, target: Target, owner_of: OwnerOf | None = None
) -> Iterator[Outcome]:
    """Store the histories of a source; yield one outcome for each.

    With `owner_of`, the scope of `target` is not used. A history is stored completely or not at
    all; a rejected one is an outcome with its error. Raises BadInput if the source can't be read or
    has no histories, MemoryUnavailable and Busy; then repeat the call.
    """
    codec.check_value(target.reason, "reason")

    @lru_cache(MAX_STORINGS)
    def storing_of(scope: str | None) -> Storing:
        return Storing(replace(target, scope=scope))

    number = 0
    for number, history in enumerate(source.histories(), 1):
        place = f"History {number} ({ascii(str(history.session_id)[:80])[1:-1]})"
        try:
            conversation = _convert(source.format, history)
            scope = target.scope if owner_of is None else _scope_of(owner_of, conversation.key)
            yield storing_of(scope).store(conversation, number=number, place=place)
        except NoMessages:
            yield Outcome(line=number, place=place, is_skipped=True, more={EMPTY: 1})
        except ChatMemoryError as error:
            if error.retry:
                error.args = (f"{place}: {error}",)
                raise
            yield Outcome(line=number, place=place, error=with_code(error))
    if not number:
        raise with_code(BadInput("There are no histories.", code="empty"))


def _scope_of(owner_of: OwnerOf, session_id: str) -> str:
    """Return the scope of the owner. Raises NotFound if there is none."""
    try:
        owner = owner_of(session_id)
    except ObjectDoesNotExist:  # of `User.objects.get` in the function
        owner = None
    if owner is None:
        raise NotFound("The function of --owner-of returned no owner.")
    return owner if isinstance(owner, str) else user_scope(owner)


def _convert(format: str, history: History) -> Conversation:
    """Convert a history. Raises BadInput, Conflict, MemoryUnavailable, NoMessages."""
    session_id = history.session_id
    if not isinstance(session_id, str):
        raise BadInput("session_id must be a text.", code="bad_shape", field="session_id")
    check_session_key(session_id)
    entries: list[Entry] = []
    size = 0
    for stored in history.messages:
        if not isinstance(stored.text, str | bytes):
            field = f"message {stored.id}"
            raise BadInput(f"{field} must be a text.", code="bad_shape", field=field)
        size += len(stored.text)
        if size > MAX_CONVERSATION:
            message = f"The history is larger than {MAX_CONVERSATION} bytes."
            raise BadInput(message, code="too_large", limit=MAX_CONVERSATION)
        if len(entries) == MAX_MESSAGES:
            message = f"The history has more than {MAX_MESSAGES} messages."
            raise BadInput(message, code="too_many", limit=MAX_MESSAGES)
        entries.append(_entry_of(stored, stored.text))
    if not entries:
        raise NoMessages
    return Conversation(
        product=format,
        id=session_id,
        key=session_id,
        title="",
        created_at=None,
        entries=entries,
        lost=Counter(),
    )


def _entry_of(stored: Stored, text: str | bytes) -> Entry:
    """Convert a message. Raises BadInput."""
    field = f"message {stored.id}"
    try:
        parsed = codec.parse_json(text, is_ours=True)
    except BadInput as error:
        raise BadInput(
            f"{field}: {error}", code=error.code, field=field, limit=error.limit
        ) from error
    message = from_dict(parsed, field=field)
    metadata = message.get("response_metadata")
    model = name_of(metadata, "model_name", "model") if isinstance(metadata, dict) else ""
    return Entry(id=stored.id, message=message, at=moment(stored.at), model=model)
