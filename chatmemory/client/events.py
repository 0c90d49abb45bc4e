"""What a chat returns, yields and raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Frame = dict[str, Any]


class ClientError(Exception):
    """The server refused a request, or the chat has ended."""


class Refused(ClientError):
    """The server refused a frame; `code` is one of docs/reference/protocol.md."""

    def __init__(self, frame: Mapping[str, Any], client_id: str | None = None) -> None:
        self.code = str(frame.get("code"))
        self.retry = bool(frame.get("retry"))
        """Whether the same message may succeed later; resend it with `client_id`."""
        self.retry_after = (frame.get("retry_after_ms") or 0) / 1000
        """Seconds to wait before the retry; 0 if the server states none."""
        self.field: str | None = frame.get("field")
        self.limit: int | None = frame.get("limit")
        self.turn: str | None = frame.get("turn")
        """The turn that caused the refusal."""
        self.client_id = client_id
        super().__init__(f"{self.code}: {frame.get('message') or 'refused'}")


class Closed(ClientError):
    """The chat has ended and does not reconnect; `code` is the close code or the HTTP status."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"{code}: {reason}")


class NoReply(ClientError):
    """The turn ended without a reply: it was cancelled, or its messages were removed."""

    def __init__(self) -> None:
        super().__init__("no reply: the turn was cancelled, or its messages were removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message that the server committed, and the status of its turn at that moment."""

    turn: str
    status: str
    seq: int | None
    """The message's number; None while it waits."""
    is_duplicate: bool
    frame: Frame = field(repr=False)
    """The frame that was sent."""


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message."""

    fields: Frame
    """All fields of its frame."""

    @property
    def seq(self) -> int:
        return int(self.fields["seq"])

    @property
    def role(self) -> str:
        return str(self.fields["role"])

    @property
    def text(self) -> str:
        return str(self.fields["text"])

    @property
    def turn(self) -> str | None:
        """The name of its turn: the client_id of the turn's user message."""
        return self.fields.get("turn")

    @property
    def client_id(self) -> str | None:
        """The idempotency key that the sender chose."""
        return self.fields.get("client_id")

    @property
    def status(self) -> str:
        """`complete`, `interrupted` or `failed`."""
        return str(self.fields["status"])

    @property
    def error(self) -> str:
        """The error code of a failed message, else empty."""
        return str(self.fields.get("error") or "")

    @property
    def asks(self) -> Frame | None:
        """The question that the next message answers, if the message asks one."""
        return self.fields.get("asks")

    @property
    def calls(self) -> list[Frame]:
        """Its tool calls, each with `id`, `name`, `args` as JSON, and `cut`."""
        return list(self.fields.get("calls") or [])

    @property
    def result(self) -> Frame | None:
        """Of a tool: the id of the `call` that its text answers, and whether it `failed`."""
        return self.fields.get("result")

    @property
    def reasoning(self) -> str:
        """The model's reasoning, which can be truncated; empty if there is none."""
        return str((self.fields.get("reasoning") or {}).get("text", ""))


@dataclass(frozen=True, slots=True)
class Piece:
    """Streamed text of a reply that is not stored yet."""

    turn: str
    step: int
    text: str
    is_whole: bool
    """The text replaces all earlier pieces of its step."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run does besides writing text."""

    turn: str
    step: int
    kind: str
    """`thinking` or `tool`."""
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The session has changed; `chat.session` has the same fields."""

    fields: Frame


@dataclass(frozen=True, slots=True)
class Reset:
    """All rows were dropped; the newest follow."""

    reason: str
    lost: int | None = 0
    """The number of rows that the server has lost; None if the number is unknown."""


@dataclass(frozen=True, slots=True)
class Synced:
    """The client has received all rows."""

    cursor: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection is lost; the client reconnects after `seconds`."""

    code: int
    reason: str
    seconds: float


Event = Message | Piece | Progress | SessionChanged | Reset | Synced | Lost
