"""A client that sends messages, also when it loses its sockets and servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import websockets

from tests.programs.torture.history import GIVEN_UP, Event, History, Kind
from tests.programs.torture.world import World, now
from tests.servers import DEADLINE, Closed, Connection, Frame, Person, Server

PATIENCE = 40.0
"""Seconds after which a client stops waiting for an answer."""
LOST_ERRORS = (Closed, OSError, TimeoutError, websockets.WebSocketException)


class Talker:
    """A user who sends one message after another, and resends what is not acknowledged.

    `choose` returns the server for the next socket.
    """

    def __init__(
        self, world: World, person: Person, key: str, choose: Callable[[], Server]
    ) -> None:
        self.name = f"at {key}"
        self.key = key
        self.person = person
        self.choose = choose
        self.tab: Connection | None = None
        self.cursor: str | None = None
        self.current = ""
        """The client_id of the last message."""
        self.longest_wait = 0.0
        self.patience = PATIENCE
        self._has_text = asyncio.Event()
        """Set when text of the reply has arrived."""
        self._world = world
        self._history: History = world.history
        self._count = 0
        self._acked: set[str] = set()
        self._done: set[str] = set()

    async def ask(self, text: str) -> str:
        """Send a text, and wait until its turn has ended; return its client_id."""
        self._count += 1
        client_id = self.current = f"{self.key}.{self._count}"
        words = f"{text} {client_id}"
        self._has_text.clear()
        began = now()
        self._note("invoke", id=client_id, text=words)
        pauses = 0
        try:
            async with asyncio.timeout(self.patience):
                while client_id not in self._done or client_id not in self._acked:
                    try:
                        await self._attempt(client_id, words)
                    except LOST_ERRORS:
                        self._note("lost", id=client_id)
                        self.drop_socket()
                        pauses += 1
                        await asyncio.sleep(self._world.chance.uniform(0, min(0.5, 0.1 * pauses)))
        except TimeoutError:
            self._note("error", id=client_id, text=GIVEN_UP)
        self.longest_wait = max(self.longest_wait, now() - began)
        return client_id

    async def begin(self, text: str) -> asyncio.Task[str]:
        """Send a text, and return when text of the reply has arrived.

        Or when the turn has ended: after a lost socket, a client gets only the stored reply.
        """
        asking = asyncio.ensure_future(self.ask(text))
        streaming = asyncio.ensure_future(self._has_text.wait())
        await asyncio.wait({asking, streaming}, return_when=asyncio.FIRST_COMPLETED)
        streaming.cancel()
        return asking

    async def open(self) -> Connection:
        """Return an open socket that has received all rows."""
        if self.tab is None:
            tab = Connection(self.choose(), self.person, self.key)
            tab.deadline = max(DEADLINE, self.patience / 2)
            async with asyncio.timeout(5):
                await tab.__aenter__()
            self.tab = tab
            await tab.send_frame("hello", v=1, **({"cursor": self.cursor} if self.cursor else {}))
            while (await self._receive(tab))["type"] != "synced":
                pass
            self._note("back")
        return self.tab

    def drop_socket(self) -> None:
        """Abort the socket without a close frame."""
        if self.tab is not None:
            self.tab.socket.transport.abort()
            self.tab = None

    async def close(self) -> None:
        if self.tab is not None:
            with contextlib.suppress(*LOST_ERRORS):
                await self.tab.__aexit__(None, None, None)
            self.tab = None

    async def _attempt(self, client_id: str, text: str) -> None:
        tab = await self.open()
        if client_id not in self._acked:
            await tab.send_frame("send", id=client_id, client_id=client_id, text=text)
        while client_id not in self._done or client_id not in self._acked:
            frame = await self._receive(tab)
            if frame["type"] == "error" and frame.get("id") == client_id:
                if not frame["retry"]:
                    self._note("error", id=client_id, text=frame["code"], is_final=True)
                    self._acked.add(client_id)
                    self._done.add(client_id)
                    return
                self._note("error", id=client_id, text=frame["code"])
                await asyncio.sleep(0.1)
                await tab.send_frame("send", id=client_id, client_id=client_id, text=text)

    async def _receive(self, tab: Connection) -> Frame:
        frame = await tab.next()
        tab.frames.clear()
        match frame:
            case {"type": "synced", "cursor": cursor}:
                self.cursor = cursor
            case {"type": "ok", "turn": turn, "status": status, "seq": seq}:
                self._acked.add(turn)
                self._note("ack", id=turn, seq=seq, status=status)
            case {"type": "snapshot" | "delta", "turn": turn, "text": str(text)}:
                self._has_text.set()
                self._note("token", id=turn, text=text)
            case {"type": "message", "role": "assistant", "turn": str(turn)} if (
                turn not in self._done
            ):
                self._done.add(turn)
                about = {"text": frame["text"], "status": frame["status"]}
                self._note("done", id=turn, seq=frame["seq"], **about)
        return frame

    def _note(
        self,
        kind: Kind,
        *,
        id: str = "",  # noqa: A002  # as in Event
        text: str = "",
        seq: int | None = None,
        status: str = "",
        is_final: bool = False,
    ) -> None:
        self._history.note(
            Event(
                kind=kind,
                client=self.name,
                session=self.key,
                id=id,
                text=text,
                seq=seq,
                status=status,
                is_final=is_final,
            )
        )


async def talkers(
    world: World, number: int, choose: Callable[[], Server] | None = None
) -> list[Talker]:
    """Create talkers, each with a new user and session, on randomly chosen servers."""

    def any_alive() -> Server:
        alive = [server for server in world.servers if server.is_running]
        return world.chance.choice(alive or world.servers)

    return [Talker(world, *await world.person(), choose or any_alive) for _ in range(number)]


@contextlib.asynccontextmanager
async def sending(world: World, people: Sequence[Talker], *, longest: int) -> AsyncIterator[None]:
    """Let each talker send one message after another; at the end wait for their last replies.

    `longest` is the length of the longest reply in words.
    """
    is_over = asyncio.Event()

    async def send_until_over(talker: Talker) -> None:
        while not is_over.is_set():
            await talker.ask(f"count {world.chance.randint(2, longest)}")

    tasks = [asyncio.ensure_future(send_until_over(talker)) for talker in people]
    try:
        yield
    finally:
        is_over.set()
        await asyncio.gather(*tasks)


async def close_all(people: Sequence[Talker]) -> None:
    await asyncio.gather(*(talker.close() for talker in people))
