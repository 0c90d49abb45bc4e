"""The answers to the frames of an open session, each by one service call."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar, assert_never

from chatmemory import codec, protocol
from chatmemory.consumers import calls
from chatmemory.errors import MemoryUnavailable
from chatmemory.live.feed import Feed
from chatmemory.models import Session
from chatmemory.protocol import Feedback, Fetch, Rename, Send, Stop
from chatmemory.services import Actor, Login

T = TypeVar("T")


class Address(TypedDict):
    """The key of a session, and its user."""

    session_key: str
    by: Actor


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Calls services for the user of a socket."""

    login: Login
    """The login with which the user was authenticated."""
    session_key: str
    answer_seconds: float
    authenticated_at: float = field(default_factory=time.monotonic)
    """When the login was checked, on the monotonic clock."""

    @property
    def address(self) -> Address:
        return {"session_key": self.session_key, "by": self.login.by}

    async def open_session(self, *, create: bool, fresh_seconds: float) -> Session:
        """Return the session of the key. A login of the last `fresh_seconds` is not checked again.

        Raises NotFound, MemoryUnavailable, Unauthenticated, Forbidden.
        """
        is_fresh = time.monotonic() - self.authenticated_at < fresh_seconds
        return await calls.aopen(self.login, **self.address, is_fresh=is_fresh, create=create)

    async def answer(self, frame: Send | Stop | Rename | Feedback | Fetch, feed: Feed) -> str:
        """Return the `ok` frame.

        Raises MemoryUnavailable after `answer_seconds`, and the errors of the services.
        """
        match frame:
            case Send():
                return await self._answer_send(frame, feed.ref.epoch)
            case Stop(id=frame_id, turn=turn):
                status = await self._with_timeout(
                    calls.astop(self.login, **self.address, turn=turn)
                )
                return protocol.dump("ok", id=frame_id, turn=turn, status=status)
            case Rename(id=frame_id, title=title):
                await self._with_timeout(calls.arename(self.login, **self.address, title=title))
                return protocol.dump("ok", id=frame_id, title=title)
            case Feedback(id=frame_id, turn=turn, value=value, reason=reason):
                await self._with_timeout(
                    calls.afeedback(
                        self.login, **self.address, turn=turn, value=value, reason=reason
                    )
                )
                return protocol.dump("ok", id=frame_id, turn=turn, feedback=value)
            case Fetch():
                return await self._answer_fetch(frame, feed)
            case _:
                assert_never(frame)

    async def _answer_send(self, frame: Send, epoch: int) -> str:
        admitted = await self._with_timeout(
            calls.asend(
                self.login,
                **self.address,
                client_id=frame.client_id,
                content=frame.content,
                epoch=epoch if frame.epoch is None else frame.epoch,
                if_busy=frame.if_busy,
                replaces=frame.replaces,
                expect_seq=frame.expect_seq,
            )
        )
        return protocol.dump(
            "ok",
            id=frame.id,
            turn=admitted.turn,
            status=admitted.status,
            seq=admitted.seq,
            duplicate=admitted.is_duplicate,
        )

    async def _answer_fetch(self, frame: Fetch, feed: Feed) -> str:
        # Before the read, so that the feed sends a row that changes during it.
        feed.extend_down(frame.before_seq - frame.limit)
        page = await self._with_timeout(
            calls.afetch(self.login, **self.address, before=frame.before_seq, limit=frame.limit)
        )
        # The newest rows that fit into a frame; the client fetches the older ones with another.
        messages: deque[dict[str, object]] = deque()
        left = protocol.MAX_FRAME_OUT // 2
        for row in reversed(page.rows):
            fields = row.public()
            size = len(codec.dump_json(fields).encode())
            if size > left and messages:
                break
            messages.appendleft(fields if size <= left else protocol.shortened(fields, left // 8))
            left -= size
        return protocol.dump("ok", id=frame.id, messages=list(messages))

    async def _with_timeout(self, call: Awaitable[T]) -> T:
        """Wait `answer_seconds` for a database call, which continues if it takes longer.

        Raises MemoryUnavailable, and the errors of the call.
        """
        try:
            async with asyncio.timeout(self.answer_seconds):
                return await call
        except TimeoutError:
            raise MemoryUnavailable from None
