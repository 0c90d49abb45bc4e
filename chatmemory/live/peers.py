"""The other processes that run turns, and the order in which they claim."""

from __future__ import annotations

import time
import zlib

PEER_SECONDS = 30.0
"""How long a process counts after it started a turn that had waited."""


class Peers:
    """The names of the processes that have started turns recently."""

    def __init__(self) -> None:
        self._seen_at: dict[str, float] = {}

    def clear(self) -> None:
        self._seen_at.clear()

    def add(self, name: str) -> None:
        self._seen_at[name] = time.monotonic()

    def rank(self, name: str, session_pk: int) -> int:
        """Return how many of the processes claim a turn of this session before `name`."""
        oldest = time.monotonic() - PEER_SECONDS
        self._seen_at = {peer: at for peer, at in self._seen_at.items() if at > oldest}
        own = _place(name, session_pk)
        return sum(_place(peer, session_pk) < own for peer in self._seen_at)


def _place(name: str, session_pk: int) -> int:
    """Return a number that differs between sessions, so that the processes share the turns."""
    return zlib.crc32(f"{session_pk} {name}".encode())
