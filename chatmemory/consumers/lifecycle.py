"""The life of a socket: its state, its deadlines and the frame with which it closes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from enum import Enum

from chatmemory import protocol
from chatmemory.conf import settings
from chatmemory.errors import ChatMemoryError, Refused

CLOSE_SECONDS = 5.0
"""How long a client may take to answer a close."""
CLOSE_CODES = {
    "internal": 1011,
    "unauthenticated": 4401,
    "other_person": 4401,
    "forbidden": 4403,
    "refused": 4403,
    "not_found": 4404,
    "too_many_connections": 4409,
    "unsupported_version": 4426,
    "rate_limited": 4429,
    "rotating": 4503,
    "unavailable": 4503,
    "shutting_down": 4503,
}
FINAL_CODES = frozenset({1009, 4400, 4401, 4403, 4404, 4409, 4426})
"""Close codes after which a client must not reconnect."""
RECONNECT_MS = 1_000
"""Clients reconnect at a random time within this interval."""


class State(Enum):
    """The state of a connection, in the order of its life."""

    AWAITING_HELLO = "awaiting_hello"
    """No `hello` was accepted yet."""
    OPEN = "open"
    CLOSING = "closing"
    """`bye` is set. Frames are ignored; queued answers are sent while credit is left."""
    CLOSED = "closed"


class Lifecycle:
    """The state of a socket, which each of its tasks may end."""

    def __init__(self, hello_seconds: float, wake: Callable[[], object]) -> None:
        """`wake` lets the writer send the last frame."""
        self._hello_seconds = hello_seconds
        self._wake = wake
        self._state = State.AWAITING_HELLO
        self._hello_until = math.inf
        """The deadline of `hello`; infinite while none is needed."""
        # Random: clients that connected at the same time must not reconnect at the same time.
        age = settings.CONNECTION_AGE * random.uniform(0.9, 1)  # noqa: S311  # no secret
        self._rotates_at = time.monotonic() + age
        self.bye = ""
        """The last frame; set from the state CLOSING on."""
        self.close_code = CLOSE_CODES["internal"]

    @property
    def is_closing(self) -> bool:
        """Whether the socket closes or is closed."""
        return self._state in (State.CLOSING, State.CLOSED)

    @property
    def is_closed(self) -> bool:
        return self._state is State.CLOSED

    def await_hello(self) -> None:
        """Start the deadline of `hello`, which has no effect after an accepted one."""
        self._hello_until = time.monotonic() + self._hello_seconds

    def pause_hello(self) -> None:
        """Stop the deadline: a `hello` has arrived, which may wait for the database first."""
        self._hello_until = math.inf

    def accept_hello(self) -> None:
        if not self.is_closing:
            self._state = State.OPEN

    def begin_close(
        self,
        reason: str,
        *,
        close_code: int | None = None,
        after_ms: int | None = None,
        message: str | None = None,
    ) -> None:
        """Close after the queued answers. The first reason stays."""
        if not self.is_closing:
            self._state = State.CLOSING
            code = close_code or CLOSE_CODES.get(reason, CLOSE_CODES["internal"])
            self.close_code = code
            self.bye = protocol.dump(
                "bye",
                code=code,
                reason=reason,
                reconnect=code not in FINAL_CODES,
                after_ms=after_ms,
                **({} if message is None else {"message": message}),
            )
            self._wake()

    def begin_close_for(self, error: ChatMemoryError) -> None:
        """Close because a login has no access any more, with the sentence of a refusal."""
        self.begin_close(
            error.code,
            after_ms=reconnect_ms() if error.retry else None,
            message=str(error) if isinstance(error, Refused) else None,
        )

    def end(self) -> None:
        """Enter the last state. Without a reason to close, it is an internal error."""
        self.begin_close("internal")
        self._state = State.CLOSED

    def next_deadline(self) -> float:
        """Return when the writer must check again, on the monotonic clock."""
        if self._state is State.AWAITING_HELLO:
            return min(self._rotates_at, self._hello_until)
        return self._rotates_at

    def is_hello_overdue(self, now: float) -> bool:
        return self._state is State.AWAITING_HELLO and now >= self._hello_until

    def is_rotation_due(self, now: float) -> bool:
        """Whether the socket has reached its age."""
        return now >= self._rotates_at


def reconnect_ms() -> int:
    """Return a random pause before a client reconnects."""
    return random.randrange(RECONNECT_MS)  # noqa: S311  # no secret
