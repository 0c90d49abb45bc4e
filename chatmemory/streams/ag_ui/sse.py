"""The events of a turn as a run's stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from chatmemory.errors import ChatMemoryError
from chatmemory.live.texts import SessionRef
from chatmemory.streams.ag_ui.events import TurnEvents
from chatmemory.streams.ag_ui.messages import messages_of
from chatmemory.streams.reads import History, TurnRows
from chatmemory.streams.sse import data_events
from chatmemory.streams.turns import Ended, Event
from chatmemory.streams.watching import StreamClosed


class RunStream:
    """Writes the events of one turn as server-sent events."""

    headers: Mapping[str, str] = {}

    def __init__(
        self,
        events: TurnEvents,
        ref: SessionRef,
        read_history: Callable[[], Awaitable[History]],
    ) -> None:
        self._events = events
        self._ref = ref
        self._read_history = read_history

    def begin(self) -> str:
        return data_events([self._events.start()])

    async def of(self, event: Event) -> str:
        text = data_events(self._events.of(event))
        if not isinstance(event, Ended):
            return text
        if self._events.is_wrong:
            text += await self._snapshot(event.turn)
        return text + data_events([self._events.finish(event.turn)])

    async def _snapshot(self, turn: TurnRows) -> str:
        """Return the event that replaces all messages of the page by the stored ones."""
        try:
            history = await self._read_history()
        except ChatMemoryError as error:
            raise StreamClosed(error.code) from error
        if history.ref != self._ref:
            raise StreamClosed("hidden")  # a new session may have the key
        messages = messages_of(history, until=turn.user_seq)
        return data_events([{"type": "MESSAGES_SNAPSHOT", "messages": messages}])

    def end(self) -> str:
        return ""

    def broken(self, reason: str) -> str:
        message = f"The stream of the reply has ended ({reason})."
        return data_events([{"type": "RUN_ERROR", "message": message, "code": reason}])
