"""Frames of the websocket protocol `chatmemory.v1`: what clients say, and how it is said to them.

Pure: a frame is parsed from a JSON value, and dumped to text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from chatmemory import codec
from chatmemory.errors import BadInput, Busy, ChatMemoryError, RateLimited, RoleForbidden

VERSION = 1
MAX_FRAME_IN = 256 * 1024
"""Largest frame taken, in bytes; a larger one closes the socket."""
MAX_FRAME_OUT = 512 * 1024
"""Largest frame sent, in bytes; the message in a larger one is cut."""
MAX_FETCH = 100
MAX_ID_CHARS = 64

FrameId = str | int

_CURSOR = re.compile(r"([0-9]{1,16})\." * 5 + r"([0-9a-f]{16}|)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame. `create` makes the session if the key is a new version-4 UUID."""

    v: int
    cursor: str | None = None
    create: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A user's message."""

    id: FrameId
    client_id: str
    content: object
    epoch: int | None = None
    if_busy: str | None = None
    replaces: int | None = None
    expect_seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a turn; what was said so far is kept."""

    id: FrameId
    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Older messages: the newest below a number."""

    id: FrameId
    before_seq: int
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """All up to the `ping` of this number has arrived."""

    n: int


Frame = Hello | Send | Stop | Fetch | Pong


class _Fields:
    """The fields of a frame, each taken once."""

    def __init__(self, frame: Mapping[str, object]) -> None:
        self.left = {name: value for name, value in frame.items() if name != "type"}

    def text(self, name: str) -> str:
        value = self._required(name)
        if not isinstance(value, str):
            raise BadInput(f"{name} must be a text.", field=name)
        return value

    def number(self, name: str) -> int:
        value = self._required(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise BadInput(f"{name} must be a whole number.", field=name)
        return value

    def _required(self, name: str) -> object:
        if name not in self.left:
            raise BadInput(f"{name} is missing.", field=name)
        return self.left.pop(name)

    def flag(self, name: str) -> bool:
        value = self.left.pop(name, False)
        if not isinstance(value, bool):
            raise BadInput(f"{name} must be true or false.", field=name)
        return value

    def id(self) -> FrameId:
        value = id_of(self.left)
        if value is None:
            raise BadInput("id must be a number or 1 to 64 printable characters.", field="id")
        del self.left["id"]
        return value

    def has(self, name: str) -> bool:
        if name in self.left and self.left[name] is None:
            del self.left[name]
        return name in self.left

    def end(self) -> None:
        for name in self.left:
            if name == "role":
                raise RoleForbidden
            raise codec.unknown_field(name)


def id_of(frame: object) -> FrameId | None:
    """The id that the answer to a frame must carry; None if it has none that can be used."""
    value = frame.get("id") if isinstance(frame, Mapping) else None
    if isinstance(value, str) and 1 <= len(value) <= MAX_ID_CHARS and value.isprintable():
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def parse(frame: object) -> Frame:
    """The frame that a JSON value says.

    Raises BadInput (bad_shape, bad_field, unknown_field, unknown_type) and RoleForbidden.
    """
    if not isinstance(frame, Mapping):
        raise BadInput("A frame is a JSON object.", code="bad_shape")
    kind = frame.get("type")
    if not isinstance(kind, str):
        raise BadInput("type must be a text.", field="type")
    fields = _Fields(frame)
    parsed: Frame
    match kind:
        case "hello":
            parsed = Hello(
                v=fields.number("v"),
                cursor=fields.text("cursor") if fields.has("cursor") else None,
                create=fields.flag("create"),
            )
        case "send":
            parsed = _send(fields)
        case "stop":
            parsed = Stop(
                id=fields.id(), turn=codec.check_client_id(fields.text("turn"), field="turn")
            )
        case "fetch":
            limit = fields.number("limit") if "limit" in fields.left else 50
            parsed = Fetch(
                id=fields.id(),
                before_seq=fields.number("before_seq"),
                limit=max(1, min(limit, MAX_FETCH)),
            )
        case "pong":
            parsed = Pong(n=fields.number("n"))
        case _:
            raise BadInput("There is no frame of this type.", code="unknown_type", field="type")
    fields.end()
    return parsed


def _send(fields: _Fields) -> Send:
    frame_id = fields.id()
    client_id = codec.check_client_id(fields.left.pop("client_id", None))
    if "content" in fields.left:
        if "text" in fields.left:
            raise BadInput("Say a text, or a content of text blocks.", field="text")
        content = fields.left.pop("content")
        if not isinstance(content, list):
            raise BadInput("content must be a list of text blocks.", field="content")
    else:
        content = fields.text("text")
    return Send(
        id=frame_id,
        client_id=client_id,
        content=content,
        epoch=fields.number("epoch") if fields.has("epoch") else None,
        if_busy=fields.text("if_busy") if fields.has("if_busy") else None,
        replaces=fields.number("replaces") if fields.has("replaces") else None,
        expect_seq=fields.number("expect_seq") if fields.has("expect_seq") else None,
    )


def dump(kind: str, /, **fields: object) -> str:
    """A frame as text."""
    return codec.dump_json({"type": kind, **fields})


def dump_message(fields: Mapping[str, object]) -> str:
    """A message as a frame. One that is too large is cut, and says so."""
    frame = dump("message", **fields)
    if len(frame) * 4 <= MAX_FRAME_OUT or len(frame.encode()) <= MAX_FRAME_OUT:
        return frame
    return dump("message", **shortened(fields, MAX_FRAME_OUT // 16))


def shortened(fields: Mapping[str, object], chars: int) -> dict[str, object]:
    """A message's fields with its text cut and without its blocks; the whole is had by REST."""
    return {**fields, "text": str(fields["text"])[:chars], "content": None, "cut": True}


def dump_error(error: ChatMemoryError, *, id: FrameId | None = None, ref: str = "") -> str:  # noqa: A002  # the field's name
    """An error as a frame; never the text of a foreign exception."""
    fields: dict[str, object] = {} if id is None else {"id": id}
    fields |= {"code": error.code, "message": str(error), "retry": error.retry}
    match error:
        case BadInput():
            fields |= {"field": error.field} if error.field else {}
            fields |= {} if error.limit is None else {"limit": error.limit}
        case Busy():
            fields |= {} if error.turn is None else {"turn": error.turn}
        case RateLimited():
            fields["retry_after_ms"] = round(error.retry_after * 1000)
    return dump("error", **fields, **({"ref": ref} if ref else {}))


@dataclass(frozen=True, slots=True)
class Cursor:
    """A client's position in a session; opaque to it.

    The epoch identifies the session. The primary key only distinguishes a session that got
    another epoch from a new session under the same key.
    """

    session_pk: int
    epoch: int
    seq: int
    revision: int
    first_seq: int
    mark: str = ""
    """Identifies the row `seq`, which a restored database may have replaced; empty for no row."""

    def __str__(self) -> str:
        return ".".join(map(str, astuple(self)))

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """The cursor that was given out, or None for anything else."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            return None
        pk, epoch, seq, revision, first_seq = numbers = [int(part) for part in found.groups()[:5]]
        if max(numbers) > codec.MAX_SAFE_INTEGER:
            return None  # the server assigns no such number, and a database cannot add to it
        return cls(pk, epoch, seq, revision, first_seq, mark=found[6])
