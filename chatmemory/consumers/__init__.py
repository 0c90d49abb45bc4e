"""The websocket consumer: a view of one session. It keeps no data after the socket closes."""

from __future__ import annotations

from chatmemory.consumers.chat import ChatConsumer

__all__ = ["ChatConsumer"]
