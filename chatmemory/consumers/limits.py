"""The limits of a socket."""

from __future__ import annotations

from dataclasses import dataclass

from chatmemory.live.credit import CreditLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLimits(CreditLimits):
    """The limits of one socket that no setting changes. Tests replace them."""

    hello_seconds: float = 10.0
    """How long a client may take to send `hello`."""
    send_seconds: float = 30.0
    """How long it may take to send one frame; after that the client is considered not reading."""
    answer_seconds: float = 10.0
    """How long the database may take before the client is sent `unavailable`."""
    fresh_seconds: float = 2.0
    """How long a `hello` relies on the handshake's check of the login. When many clients reconnect,
    as after a restart, that saves a third of their queries."""
    frames_per_second: float = 20.0
    """The sustained rate of a client's frames."""
    burst: int = 100
    """Frames accepted above the rate; after as many refused frames the socket is closed."""
