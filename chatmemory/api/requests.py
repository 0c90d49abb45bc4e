"""The bodies and queries of requests. Services check the meaning of the values."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from chatmemory import codec
from chatmemory.conf import settings
from chatmemory.errors import BadInput, RoleForbidden
from chatmemory.protocol import DEFAULT_FETCH, MAX_FETCH, MAX_TITLE_CHARS
from chatmemory.protocol.client_frames import CLIENT_ID, TITLE, NewFeedback, UserMessage
from chatmemory.protocol.shapes import Rule, Shape

T = TypeVar("T")

MAX_QUERY_NUMBER = 10**18


def _query_number(*, minimum: int, cap: int) -> Rule:
    """Return the rule of an integer in a query string; a larger one than `cap` becomes `cap`."""

    def check(value: object, name: str) -> int:
        text = str(value)
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) < minimum:
            raise BadInput(f"{name} must be an integer of at least {minimum}.", field=name)
        return min(int(text), cap)

    return Rule(check=check, schema={"type": "integer", "minimum": minimum})


def _check_digest(value: object, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise BadInput(f"{name} must be 64 hex digits.", field=name)
    return value


def _check_embed(value: object, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[A-Za-z0-9_-]{0,64}", value):
        raise BadInput(f"{name} must be up to 64 characters of A-Z a-z 0-9 - _", field=name)
    return value


def _check_wait(value: object, name: str) -> float:
    if not isinstance(value, bool | int | float) or value < 0:
        raise BadInput(f"{name} must be true or at least 0 seconds.", field=name)
    return settings.TURN_TIMEOUT if value is True else min(value, settings.TURN_TIMEOUT)


def _query_choice(choices: Mapping[str, object], **schema: object) -> Rule:
    """Return the rule of a text in a query string that is one of these; it becomes the value."""

    def check(value: object, name: str) -> object:
        text = str(value)
        if text not in choices:
            raise BadInput(f"{name} must be {' or '.join(choices)}.", field=name)
        return choices[text]

    return Rule(check=check, schema=schema)


def _check_title_part(value: object, name: str) -> str:
    text = codec.check_storable(str(value), name)
    if len(text) > MAX_TITLE_CHARS:
        message = f"{name} must have up to {MAX_TITLE_CHARS} characters."
        raise BadInput(message, field=name, limit=MAX_TITLE_CHARS)
    return text


def _check_metadata(value: object, name: str) -> str:
    text = codec.check_storable(str(value), name)
    if ":" not in text:
        raise BadInput(f"{name} must be a key, a colon and a text.", field=name)
    return text


LIMIT = _query_number(minimum=1, cap=MAX_FETCH)
SEQ = _query_number(minimum=0, cap=MAX_QUERY_NUMBER)
FLAG = _query_choice({"true": True, "false": False}, type="boolean")
METADATA = Rule(check=_check_metadata, schema={"type": "string", "pattern": "^[^:]+:."})
TITLE_PART = Rule(check=_check_title_part, schema=TITLE.schema)
EXPORT_FORMAT = _query_choice(
    {name: name for name in ("json", "markdown")},
    enum=["json", "markdown"],
)
KEY = Rule(
    check=lambda value, name: codec.check_key(value, field=name),
    schema={"type": "string", "pattern": "^[A-Za-z0-9_.:@-]{1,200}$"},
)
EMBED = Rule(check=_check_embed, schema={"type": "string", "pattern": "^[A-Za-z0-9_-]{0,64}$"})
DIGEST = Rule(check=_check_digest, schema={"type": "string", "pattern": "^[0-9a-f]{64}$"})
WAIT = Rule(
    check=_check_wait,
    schema={"anyOf": [{"type": "boolean"}, {"type": "number", "minimum": 0}]},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """A page of sessions. A filter that is absent selects all."""

    archived: Annotated[bool | None, FLAG] = None
    """whether they are archived"""
    pinned: Annotated[bool | None, FLAG] = None
    """whether they are pinned"""
    running: Annotated[bool | None, FLAG] = None
    """whether a turn runs in them"""
    title: Annotated[str, TITLE_PART] = ""
    """a part of their titles, in upper or lower case"""
    metadata: Annotated[str | None, METADATA] = None
    """`key:text`: a key of METADATA_FILTERS, and what their metadata has for it"""
    limit: Annotated[int, LIMIT] = DEFAULT_FETCH
    """maximum number of sessions, by default 50, at most 100"""
    cursor: str | None = None
    """`next` of an earlier response"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQuery:
    """A page of messages: the oldest after a seq, the newest before one, those that a client has
    missed since a cursor, or the newest of all. At most one of the three is allowed."""

    limit: Annotated[int, LIMIT] = DEFAULT_FETCH
    """maximum number of messages, by default 50, at most 100"""
    after: Annotated[int | None, SEQ] = None
    """only messages with a higher seq"""
    before: Annotated[int | None, SEQ] = None
    """only messages with a lower seq"""
    cursor: str | None = None
    """`cursor` of an earlier response or of a `synced` frame: only messages that are new or changed
    since"""
    html: Annotated[bool, FLAG] = False
    """whether each message also has its text as HTML"""

    def __post_init__(self) -> None:
        given = [name for name in ("after", "before", "cursor") if getattr(self, name) is not None]
        if len(given) > 1:
            raise BadInput("Only one of after, before and cursor can be set.", field=given[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageForm:
    """The form of one message."""

    html: Annotated[bool, FLAG] = False
    """whether the message also has its text as HTML"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Opens a session."""

    key: Annotated[str, KEY] = field(default_factory=lambda: str(uuid.uuid4()))
    """the key, by default a random one; that of a new session must be a version-4 UUID"""
    title: Annotated[str, TITLE] = ""
    """the title of a new session"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSession:
    """Changes a session; at least one of title and pinned."""

    title: Annotated[str | None, TITLE] = None
    """the title; empty for none"""
    pinned: bool | None = None
    """whether the session is pinned; a person can pin up to 100"""
    expect_revision: int | None = None
    """the revision that the client knows; after another change the answer is `conflict`"""

    def __post_init__(self) -> None:
        if self.title is None and self.pinned is None:
            raise BadInput("title or pinned is required.", field="title")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedQuery:
    """A page of purged sessions."""

    limit: Annotated[int, LIMIT] = DEFAULT_FETCH
    """maximum number of sessions, by default 50, at most 100"""
    cursor: Annotated[int | None, SEQ] = None
    """`next` of an earlier response"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """The body is an empty object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage(UserMessage):
    """Sends a message. The response follows the commit, or the turn's end with `wait`."""

    wait: Annotated[float, WAIT] = 0
    """how many seconds to wait for the reply, at most `TURN_TIMEOUT`; `true` waits that long"""
    html: bool = False
    """whether each message of the answer also has its text as HTML"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVisitor:
    """Creates a visitor, of this site or of an embed."""

    embed: Annotated[str, EMBED] = ""
    """the public key of the embed on whose page the visitor is; empty on this site"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Moves the sessions of a visitor to the user."""

    visitor: Annotated[str, DIGEST]
    """`visitor` of the list that the person has confirmed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTurn:
    """Stops a turn; the body may be an empty object."""

    turn: Annotated[str | None, CLIENT_ID] = None
    """the turn's `client_id`; by default the running turn"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportQuery:
    """The format of an export."""

    format: Annotated[str, EXPORT_FORMAT] = "json"
    """the format of the file, by default `json`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseOwnData:
    """Erases all sessions of the user."""

    confirm: str
    """the user's username"""


SESSION_QUERY = Shape(SessionQuery)
MESSAGE_QUERY = Shape(MessageQuery)
MESSAGE_FORM = Shape(MessageForm)
OPEN_SESSION = Shape(OpenSession)
UPDATE_SESSION = Shape(UpdateSession)
REMOVED_QUERY = Shape(RemovedQuery)
SEND_MESSAGE = Shape(SendMessage)
SET_FEEDBACK = Shape(NewFeedback)
ADOPT = Shape(Adopt)
STOP_TURN = Shape(StopTurn)
EXPORT_QUERY = Shape(ExportQuery)
ERASE_OWN_DATA = Shape(EraseOwnData)
NOTHING = Shape(Nothing)
NEW_VISITOR = Shape(NewVisitor)


def read(shape: Shape[T], data: object) -> T:
    """Convert a body or query. Raises BadInput, and RoleForbidden for a message with a role."""
    if not isinstance(data, Mapping):
        raise BadInput("The body must be a JSON object.", code="bad_shape")
    if "role" in data and issubclass(shape.kind, UserMessage):
        raise RoleForbidden
    unknown = shape.unknown_in(data)
    if unknown is not None:
        raise codec.unknown_field(unknown)
    return shape.parse(data)
