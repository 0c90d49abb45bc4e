"""The frames that a chat sends while it reads an event stream: calls of the REST API."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from chatmemory.client.events import Frame
from chatmemory.client.http import ApiError
from chatmemory.client.pauses import max_pause
from chatmemory.client.rest import RestClient


class RestPosts:
    """Sends frames of one session as calls, and hands over their answers as frames."""

    def __init__(
        self,
        rest: RestClient,
        key: str,
        *,
        answer: Callable[[Frame], Awaitable[None]],
        fail: Callable[[object, BaseException], None],
    ) -> None:
        """`fail` gets the id of a frame, and the error that is no answer of the server."""
        self._rest = rest
        self._key = key
        self._answer = answer
        self._fail = fail
        self._calls: dict[asyncio.Task[None], object] = {}
        """The calls without an answer, and the ids of their frames."""

    def send(self, frame: Frame) -> None:
        """Start the call of a frame; its answer has the frame's id."""
        call = asyncio.ensure_future(self._send(frame))
        self._calls[call] = frame["id"]
        call.add_done_callback(self._end)

    def _end(self, call: asyncio.Task[None]) -> None:
        frame_id = self._calls.pop(call)
        if not call.cancelled() and (error := call.exception()) is not None:
            self._fail(frame_id, error)

    async def close(self) -> None:
        """Cancel the calls without an answer; the server may have executed them."""
        calls = [*self._calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _send(self, frame: Frame) -> None:
        """Repeat a call until the server answers it: each has an id, or can be repeated."""
        failures = 0
        while True:
            try:
                fields = await self._call(frame)
            except ApiError as error:
                if not is_lost(error):
                    return await self._answer({**_error_fields(error), "id": frame["id"]})
                failures += 1
                # Random, so that the clients of a restarted server do not return all together.
                await asyncio.sleep(random.uniform(0, max_pause(failures)))  # noqa: S311  # no secret
            else:
                return await self._answer({**fields, "type": "ok", "id": frame["id"]})

    async def _call(self, frame: Frame) -> Frame:
        match frame:
            case {"type": "send", "id": _, **fields}:
                text, content = fields.pop("text", None), fields.pop("content", None)
                options: Any = {name: value for name, value in fields.items() if name != "type"}
                return await self._rest.send_message(self._key, text, content=content, **options)
            case {"type": "stop", "turn": turn}:
                return await self._rest.stop_turn(self._key, turn)
            case {"type": "rename", "title": title}:
                return await self._rest.update_session(self._key, title=title)
            case {"type": "feedback", "turn": turn, "value": value, "reason": reason}:
                return await self._rest.set_feedback(self._key, turn, value, reason)
            case {"type": "fetch", "before_seq": before, "limit": limit}:
                return await self._rest.list_messages(self._key, before=before, limit=limit)
        raise ValueError(f"{frame['type']!r} has no call")


def is_lost(error: ApiError) -> bool:
    """Whether no answer of the API arrived, and the unchanged call may succeed."""
    return error.retry and error.code in ("disconnected", "bad_response")


def _error_fields(error: ApiError) -> Frame:
    """Return the error as the frame that a websocket would have sent."""
    return {
        "type": "error",
        "code": error.code,
        "message": error.message,
        "retry": error.retry,
        "retry_after_ms": error.retry_after * 1000,
        "field": error.field,
        "limit": error.limit,
        "turn": error.turn,
    }
