"""The events of a turn as `useChat` reads them."""

from __future__ import annotations

from collections.abc import Mapping

from chatmemory.streams.ai_sdk.chunks import TurnChunks
from chatmemory.streams.sending import turn_reply_id
from chatmemory.streams.sse import data_events
from chatmemory.streams.turns import Event


class UIMessageStream:
    """Writes the chunks of one turn as server-sent events."""

    headers: Mapping[str, str] = {"x-vercel-ai-ui-message-stream": "v1"}

    def __init__(self, turn: str) -> None:
        self._chunks = TurnChunks(turn, turn_reply_id(turn))

    def begin(self) -> str:
        return data_events([self._chunks.start()])

    async def of(self, event: Event) -> str:
        return data_events(self._chunks.of(event))

    def end(self) -> str:
        return "data: [DONE]\n\n"

    def broken(self, reason: str) -> str:
        return data_events([self._chunks.error(reason)])
