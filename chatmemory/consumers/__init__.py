"""The websocket: a view of one session, that reads, writes and forgets."""

from __future__ import annotations

from chatmemory.consumers.chat import ChatConsumer

__all__ = ["ChatConsumer"]
