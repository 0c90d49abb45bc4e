"""The frames that clients send, and their parser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, get_args

from chatmemory import codec
from chatmemory.errors import BadInput, RoleForbidden
from chatmemory.protocol.shapes import (
    NUMBER,
    OneOf,
    Rule,
    Shape,
    check_number,
    check_text,
    text_rule,
    with_conditions,
)

VERSION = 1
DEFAULT_FETCH = 50
MAX_FETCH = 100
MAX_ID_CHARS = 64
MAX_TITLE_CHARS = 200
MAX_REASON_CHARS = 1_000
FEEDBACK = (1, -1)
BUSY_POLICIES = ("queue", "reject", "interrupt")

MAX_FRAME_IN = 256 * 1024
"""Maximum size of a client's frame in bytes; a larger one closes the socket."""

FrameId = str | int


def id_of(frame: object) -> FrameId | None:
    """Return the id for the answer to a frame; None without a valid one."""
    return _valid_id(frame.get("id")) if isinstance(frame, Mapping) else None


def _valid_id(value: object) -> FrameId | None:
    if isinstance(value, str) and 1 <= len(value) <= MAX_ID_CHARS and value.isprintable():
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def _check_id(value: object, field: str) -> FrameId:
    frame_id = _valid_id(value)
    if frame_id is None:
        message = f"{field} must be an integer or a string of 1 to 64 printable characters."
        raise BadInput(message, field=field)
    return frame_id


def _check_client_id(value: object, field: str) -> str:
    return codec.check_client_id(value, field=field)


def _check_blocks(value: object, field: str) -> list[object]:
    if not isinstance(value, list):
        raise BadInput(f"{field} must be a list of text blocks.", field=field)
    return value


def _check_feedback(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadInput(f"{field} must be 1, -1 or null.", field=field)
    return value


def _check_limit(value: object, field: str) -> int:
    return max(1, min(check_number(value, field), MAX_FETCH))


ID = Rule(
    check=_check_id,
    schema={
        "description": "chosen by the client, an integer or printable characters; "
        "exactly one `ok` or `error` carries it",
        "anyOf": [
            {"type": "integer"},
            {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS},
        ],
    },
    name="id",
)
CLIENT_ID = Rule(
    check=_check_client_id,
    schema={"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$"},
    name="client_id",
)
BLOCKS = Rule(
    check=_check_blocks,
    schema={
        "description": "the text as text blocks",
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["type", "text"],
            "additionalProperties": False,
            "properties": {
                "type": {"const": "text"},
                "text": {"type": "string", "minLength": 1},
            },
        },
    },
)
TEXT = text_rule(
    description="the text, at most `max_message_chars` characters; not together with `content`",
    minLength=1,
)
TITLE = text_rule(maxLength=MAX_TITLE_CHARS)
VALUE = Rule(check=_check_feedback, schema={"type": "integer", "enum": [*FEEDBACK]})
_SOME = {"minLength": 1}
REASON = text_rule(maxLength=MAX_REASON_CHARS)
POLICY = Rule(check=check_text, schema={"enum": [*BUSY_POLICIES]})
LIMIT = Rule(check=_check_limit, schema=NUMBER.schema, name=NUMBER.name)
SUPPORTED_VERSION = Rule(check=check_number, schema={"type": "integer", "const": VERSION})


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """A user's message, over a websocket and over REST."""

    client_id: Annotated[str, CLIENT_ID]
    """the message's idempotency key, generated before the first attempt; a repeat is not stored
    again"""
    content: Annotated[object, OneOf({"text": TEXT, "content": BLOCKS})]
    epoch: int | None = None
    """the epoch that the user saw, by default the latest; after a clear, an older one is
    `history_cleared`"""
    if_busy: Annotated[str | None, POLICY] = None
    """the policy while a turn runs or waits; by default the server's `BUSY_POLICY`"""
    replaces: int | None = None
    """seq of the user's message that this one replaces, with all later messages"""
    expect_seq: int | None = None
    """seq of the newest user's message that the client has; `conflict` if a newer one exists"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTitle:
    """The new title of a session, over a websocket and over REST."""

    title: Annotated[str, TITLE]
    """the title; empty for none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFeedback:
    """A person's feedback on the reply of a turn, over a websocket and over REST."""

    value: Annotated[int | None, VALUE]
    """1 for a good reply, -1 for a bad one; null withdraws the feedback"""
    reason: Annotated[str, REASON] = ""
    """the reason, which replaces the earlier one; only with a value"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame, within 10 s. The answer is `welcome`, the missed messages, and `synced`."""

    v: Annotated[int, SUPPORTED_VERSION]
    """the protocol version; the answer to another is `unsupported_version` and close 4426"""
    cursor: str | None = None
    """from the last `synced` frame; without one the newest 50 messages follow"""
    create: bool = False
    """accept a key that is a new version-4 UUID; any other unknown key is `not_found`"""
    html: str | None = None
    """the language tag of labels in HTML, such as `en`; with it, `block` frames are sent too"""
    person: str | None = None
    """the primary key of the user of the page; for any other person, the answer is close 4401"""


@with_conditions(dependentRequired={"replaces": ["expect_seq"]})
@dataclass(frozen=True, slots=True, kw_only=True)
class Send(UserMessage):
    """A user's message. The answer is `ok` after the commit."""

    id: Annotated[FrameId, ID]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Ends a turn. The answer is `ok` with its status."""

    id: Annotated[FrameId, ID]
    turn: Annotated[str, CLIENT_ID]
    """the turn: the client_id of its user's message"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename(NewTitle):
    """Changes the title of the session. The answer is `ok` with the title; all sockets of the
    session get a `session` frame."""

    id: Annotated[FrameId, ID]


@with_conditions(
    **{"not": {"properties": {"value": {"type": "null"}, "reason": _SOME}, "required": ["reason"]}}
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback(NewFeedback):
    """Rates the reply of an ended turn. The answer is `ok` with the value; all sockets of the
    session get the reply again, with its new `feedback`."""

    id: Annotated[FrameId, ID]
    turn: Annotated[str, CLIENT_ID]
    """the turn: the client_id of its user's message"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Requests older messages. The answer is `ok` with the newest below `before_seq` that fit in a
    frame; the cursor does not move."""

    limit: Annotated[int, LIMIT] = DEFAULT_FETCH
    """maximum number of messages, by default 50, at most 100"""
    id: Annotated[FrameId, ID]
    before_seq: int
    """only messages with a lower seq"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """Confirms all frames up to a `ping`. No answer."""

    n: int
    """the `n` of the `ping`"""


Request = Hello | Send | Stop | Rename | Feedback | Fetch
"""A frame that gets an answer."""

Frame = Request | Pong

SHAPES: Mapping[str, Shape[Frame]] = {
    kind.__name__.lower(): Shape(kind, ignored=["type"]) for kind in get_args(Frame)
}
"""The client's frames by type."""


def parse(frame: object) -> Frame:
    """Convert a JSON value to a frame.

    Raises BadInput (bad_shape, bad_field, unknown_field, unknown_type) and RoleForbidden.
    """
    if not isinstance(frame, Mapping):
        raise BadInput("A frame must be a JSON object.", code="bad_shape")
    kind = frame.get("type")
    if not isinstance(kind, str):
        raise BadInput("type must be a string.", field="type")
    shape = SHAPES.get(kind)
    if shape is None:
        raise BadInput("Unknown frame type.", code="unknown_type", field="type")
    parsed = shape.parse(frame)
    unknown = shape.unknown_in(frame)
    if unknown == "role":
        raise RoleForbidden
    if unknown is not None:
        raise codec.unknown_field(unknown)
    return parsed
