"""What operators see of the content of conversations; see the setting TRANSCRIPTS."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from django.http import HttpRequest

from chatmemory import codec
from chatmemory.admin.readonly import ReadOnlyAdmin, operator
from chatmemory.admin.text import visible
from chatmemory.conf import settings
from chatmemory.models import Message, Session, Turn, starts_of
from chatmemory.rendering.text import first_words
from chatmemory.services.audit import readings

REVEAL_SECONDS = 900
"""How long an operator sees a session that was revealed."""

_REVEALED = "chatmemory_revealed"
"""The key of the operator's Django session with {primary key: the time when the reveal ends}."""


class Content(Enum):
    """How an operator sees a text."""

    SHOWN = "shown"
    MASKED = "masked"
    HIDDEN = "hidden"

    def apply(self, text: str) -> str:
        """Return the text as the operator sees it; empty if it is hidden."""
        if self is Content.SHOWN:
            return text
        return mask(text) if self is Content.MASKED else ""


def content_of(model_admin: ReadOnlyAdmin, request: HttpRequest, session: Session) -> Content:
    """Return how the operator sees the messages, instructions and metadata of a session."""
    if not model_admin.permits(request, "view_transcript", obj=session):
        return Content.HIDDEN
    return _content(request, session)


def title_of(request: HttpRequest, session: Session) -> str:
    """Return the title as the operator sees it, or an empty text."""
    return visible(_content(request, session).apply(session.title))


def note_text(request: HttpRequest, session: Session, text: str) -> str:
    """Return the text of a note as the operator sees it, masked unless titles are shown."""
    return text if _content(request, session) is Content.SHOWN else mask(text)


def name_of(
    model_admin: ReadOnlyAdmin,
    request: HttpRequest,
    session: Session,
    first_text: str | None = None,
) -> str:
    """Return what all pages call a session; see `names_of`.

    `first_text` is the beginning of its first user message, if the caller has read it.
    """
    texts = None if first_text is None else {session.pk: first_text}
    return names_of(model_admin, request, [session], texts)[session.pk]


def names_of(
    model_admin: ReadOnlyAdmin,
    request: HttpRequest,
    sessions: Sequence[Session],
    first_texts: Mapping[int, str] | None = None,
) -> dict[int, str]:
    """Return what all pages call each session, in at most one statement.

    The title or the first words, as far as the operator may read them; otherwise the key.
    """
    titles = {session.pk: title_of(request, session) for session in sessions}
    readable = {
        session.pk: content
        for session in sessions
        if not session.title
        and (content := content_of(model_admin, request, session)) is not Content.HIDDEN
    }
    texts = starts_of(readable.keys()) if first_texts is None else first_texts
    words = {
        pk: visible(content.apply(first_words(texts.get(pk, ""))))
        for pk, content in readable.items()
    }
    return {
        session.pk: titles[session.pk] or words.get(session.pk) or visible(session.key)
        for session in sessions
    }


def visible_names(
    model_admin: ReadOnlyAdmin, request: HttpRequest, pks: Iterable[int]
) -> dict[int, str]:
    """Return the names of those of these sessions that the operator can view, by primary key."""
    sessions = model_admin.get_queryset(request).defer("instructions", "metadata").in_bulk(pks)
    seen = [one for one in sessions.values() if model_admin.permits(request, "view", obj=one)]
    return names_of(model_admin, request, seen)


def _content(request: HttpRequest, session: Session) -> Content:
    if settings.TRANSCRIPTS == "off":
        return Content.HIDDEN
    if settings.TRANSCRIPTS == "masked" and not is_revealed(request, session):
        return Content.MASKED
    return Content.SHOWN


def are_titles_readable() -> bool:
    """Return whether the setting lets operators read titles, and so search in them."""
    return settings.TRANSCRIPTS == "normal"


def conceal(messages: Sequence[Message], turns: Iterable[Turn]) -> None:
    """Mask the content of rows that were read, in place; never save them."""
    for message in messages:
        message.text, message.body = mask(message.text), None
    for turn in turns:
        if turn.asked:
            text = mask(turn.asked_text)
            turn.asked = codec.dump_json({"role": Message.Role.USER, "content": text})
        turn.partial = mask(turn.partial)
        reason = turn.__dict__.get("reason")  # of the feedback, as an annotation
        turn.__dict__["reason"] = reason and mask(reason)


def mask(text: str) -> str:
    """Replace each letter and digit; the length and the form remain."""
    return re.sub(r"\w", "•", text)


def reveal(request: HttpRequest, session: Session, reason: str) -> None:
    """Let the operator see the session for a while, and record the reason. Raises BadInput."""
    readings.record_reveal(session=session, by=operator(request), reason=reason)
    now = time.time()
    valid = {pk: ends for pk, ends in _revealed(request).items() if ends > now}
    request.session[_REVEALED] = {**valid, _reveal_name(session): now + REVEAL_SECONDS}


def is_revealed(request: HttpRequest, session: Session) -> bool:
    """Return whether the operator has revealed this session, and may still see it."""
    # The permission may have been removed since.
    if not request.user.has_perm("chatmemory.view_unmasked"):
        return False
    return _revealed(request).get(_reveal_name(session), 0) > time.time()


def _revealed(request: HttpRequest) -> dict[str, float]:
    stored: dict[str, float] = request.session.get(_REVEALED, {})
    return stored


def _reveal_name(session: Session) -> str:
    """Return the primary key with the epoch: a clear ends the reveal."""
    return f"{session.pk}.{session.epoch}"
