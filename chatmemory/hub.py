"""The hub of a process: its live sockets, the text of runs, and the hints between processes.

It has a thread and an event loop of its own, so neither a busy server loop nor a frozen channel
layer holds up the other. Nothing here is kept: what matters is in the database, a lost hint is
made good by the next sweep, and lost text by the finished row.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from channels.exceptions import InvalidChannelLayerError
from channels.layers import InMemoryChannelLayer, get_channel_layer

from chatmemory import services
from chatmemory.errors import MemoryUnavailable
from chatmemory.models import Head, Session, Turn
from chatmemory.services.pool import in_pool
from chatmemory.services.rights import living_logins, proofs_of

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 5.0
LAYER_SECONDS = 0.5
"""How long a call of the channel layer may take."""
RETRY_SECONDS = 1.0
PUBLISH_SECONDS = 0.05
"""How often the new text of a run is told to other processes."""
RUNNERS = "chatmemory.runners"
"""The group of all processes that can run turns."""
MAX_SWEPT_TURNS = 100
MAX_HINTS = 10_000
"""Hints kept for a layer that can't be reached; then the oldest go."""


class Socket(Protocol):
    """What the hub knows of a websocket. All but `rights` may be called from any thread."""

    user_pk: str
    login_key: str | None
    """The key of the Django session that it was opened with."""
    proof: str
    """That of the account then: another once its password has changed."""

    def poke(self) -> None:
        """The session may have news: look."""

    def say(self) -> None:
        """There is new text of a run."""

    def expel(self) -> None:
        """The right to be here has ended."""

    def retire(self, reason: str, after_ms: int) -> None:
        """Go, and come back after so long: to another process, or this one begun anew."""


class Listener(Protocol):
    """Who runs turns in this process; called in the hub's thread, must return at once."""

    def consider(self, session_pk: int) -> None:
        """A turn of this session waits."""

    def stop(self, turn_pk: int) -> None:
        """This turn shall stop."""


@dataclass(slots=True)
class LiveText:
    """The text of one step of a run, in pieces. A reader's place is a number of pieces."""

    turn: str
    step: int
    pieces: list[str] = field(default_factory=list)
    published: int = 0
    """Pieces told to other processes."""
    received: int = 0
    """In a mirror, the owner's pieces that arrived."""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)


class Hub:
    """Sockets by session, texts by session, one task for all calls of the channel layer."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._sockets: defaultdict[int, set[Socket]] = defaultdict(set)
        self._heads: dict[int, Head | None] = {}
        self._texts: dict[int, LiveText] = {}
        self._mirrors: dict[int, LiveText] = {}
        self._unpublished: set[int] = set()
        self._is_serving = False
        self._layer = _Layer(self._hear, self._has_joined)

    # Called from any thread.

    def join(self, session_pk: int, socket: Socket) -> None:
        """From now on the socket is told of news of the session."""
        self._is_serving = True
        with self._lock:
            self._sockets[session_pk].add(socket)
        self._call(self._follow, session_pk)

    def leave(self, session_pk: int, socket: Socket) -> None:
        """The socket is told no more."""
        with self._lock:
            sockets = self._sockets.get(session_pk, set())
            sockets.discard(socket)
        if not sockets:
            self._call(self._forget, session_pk)

    def serve(self) -> None:
        """This process runs turns: hear of those that wait, and sweep."""
        self._is_serving = True
        self._call(self._layer.join, RUNNERS)

    def begin_text(self, session_pk: int, turn: str, step: int) -> LiveText:
        """A run of this process begins a step."""
        text = self._texts[session_pk] = LiveText(turn, step)
        if self._layer.is_shared:
            self._call(self._layer.join, RUNNERS)  # there, sockets elsewhere ask for the whole
        return text

    def grew(self, session_pk: int) -> None:
        """The text of a run of this process has new pieces."""
        self._say(session_pk)
        if self._layer.is_shared:
            self._call(self._publish_soon, session_pk)

    def end_text(self, session_pk: int, turn: str) -> None:
        """The turn ended; its rows say it all."""
        for texts in (self._texts, self._mirrors):
            text = texts.get(session_pk)
            if text is not None and text.turn == turn:
                texts.pop(session_pk, None)

    def text_of(self, session_pk: int) -> LiveText | None:
        """The text of the session's run, of this process or another's."""
        return self._texts.get(session_pk) or self._mirrors.get(session_pk)

    def poke(self, session_pk: int) -> None:
        """A session has news: tell its sockets, here and in other processes."""
        self._poke_here(session_pk)
        self._tell(_group(session_pk), "news", session=session_pk)

    def call_runners(self, session_pk: int) -> None:
        """A turn waits: tell the runners of other processes."""
        self._tell(RUNNERS, "work", session=session_pk)

    def call_stop(self, turn_pk: int) -> None:
        """A turn shall stop: tell the runners of other processes."""
        self._tell(RUNNERS, "stop", turn=turn_pk)

    def shut_down(self) -> None:
        """End the thread. For tests, and processes that end in order."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=5)
        for kept in (self._sockets, self._heads, self._texts, self._mirrors, self._unpublished):
            kept.clear()
        self._is_serving = False
        self._layer = _Layer(self._hear, self._has_joined)

    # The thread.

    def _call(self, function: Callable[..., object], *args: object) -> None:
        self._running_loop().call_soon_threadsafe(function, *args)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="chatmemory-hub", daemon=True
                )
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        tasks = [loop.create_task(self._layer.run()), loop.create_task(self._sweep_for_ever())]
        loop.run_forever()
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()

    # Hints between processes.

    def _tell(self, group: str, kind: str, **fields: object) -> None:
        if self._layer.is_shared:
            self._call(self._layer.tell, group, kind, fields)

    def _follow(self, session_pk: int) -> None:
        self._layer.join(_group(session_pk))
        if session_pk not in self._texts and session_pk not in self._mirrors:
            self._ask_for_whole(session_pk)

    def _has_joined(self, session_pk: int) -> None:
        """What was said while the layer subscribed was lost: look."""
        self._poke_here(session_pk)

    def _ask_for_whole(self, session_pk: int) -> None:
        # Of the runners, since who runs the turn need not have a socket of the session.
        self._layer.tell(RUNNERS, "whole", {"session": session_pk})

    def _forget(self, session_pk: int) -> None:
        with self._lock:
            if self._sockets.get(session_pk):
                return
            self._sockets.pop(session_pk, None)
        self._mirrors.pop(session_pk, None)
        self._heads.pop(session_pk, None)
        self._layer.leave(_group(session_pk))

    def _publish_soon(self, session_pk: int) -> None:
        if session_pk not in self._unpublished:
            self._unpublished.add(session_pk)
            asyncio.get_running_loop().call_later(PUBLISH_SECONDS, self._publish, session_pk)

    def _publish(self, session_pk: int, *, whole: bool = False) -> None:
        self._unpublished.discard(session_pk)
        text = self._texts.get(session_pk)
        if text is None:
            return
        begin, end = 0 if whole else text.published, len(text.pieces)
        if begin < end or whole:
            piece = "".join(text.pieces[begin:end])
            fields = {"turn": text.turn, "step": text.step, "from": begin, "to": end, "text": piece}
            text.published = end
            self._layer.tell(_group(session_pk), "text", {"session": session_pk, **fields})

    def _hear(self, kind: str, event: Mapping[str, Any]) -> None:
        match kind:
            case "news":
                self._poke_here(event["session"])
            case "text":
                self._mirror(event)
            case "whole":
                self._publish(event["session"], whole=True)
            case "work" if self.listener is not None:
                self.listener.consider(event["session"])
            case "stop" if self.listener is not None:
                self.listener.stop(event["turn"])

    def _mirror(self, event: Mapping[str, Any]) -> None:
        session_pk = event["session"]
        if session_pk in self._texts or not self._sockets.get(session_pk):
            return
        text = self._mirrors.get(session_pk)
        is_same = text is not None and (text.turn, text.step) == (event["turn"], event["step"])
        if event["from"] == 0 and not (is_same and text and text.received >= event["to"]):
            text = LiveText(event["turn"], event["step"], [event["text"]], received=event["to"])
            self._mirrors[session_pk] = text
            self._poke_here(session_pk)  # if the hint that the run began was lost
        elif text is not None and is_same and event["from"] == text.received:
            text.pieces.append(event["text"])
            text.received = event["to"]
        elif not is_same or (text and event["from"] > text.received):
            self._ask_for_whole(session_pk)
            return
        self._say(session_pk)

    def _poke_here(self, session_pk: int) -> None:
        for socket in tuple(self._sockets.get(session_pk, ())):
            socket.poke()

    def _say(self, session_pk: int) -> None:
        for socket in tuple(self._sockets.get(session_pk, ())):
            socket.say()

    # The sweep.

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if self._is_serving:
                try:
                    await self._sweep()
                except Exception:
                    logger.exception("the sweep failed; the next one is in %s s", SWEEP_SECONDS)

    async def _sweep(self) -> None:
        """A few queries, whatever the number of sockets: heal, expel, end, begin."""
        sockets = {socket for group in tuple(self._sockets.values()) for socket in tuple(group)}
        found = await _asweep(
            session_pks=tuple(self._sockets),
            user_pks={socket.user_pk for socket in sockets},
            login_keys={socket.login_key for socket in sockets if socket.login_key},
        )
        for session_pk in tuple(self._sockets):
            head = found.heads.get(session_pk)
            if session_pk not in self._heads or self._heads[session_pk] != head:
                self._heads[session_pk] = head
                self._poke_here(session_pk)
            mirror = self._mirrors.get(session_pk)
            if mirror is not None and (head is None or head.running != mirror.turn):
                self._mirrors.pop(session_pk, None)  # its turn ended
        for socket in sockets:
            has_login = socket.login_key is None or socket.login_key in found.login_keys
            if found.proofs.get(socket.user_pk) != socket.proof or not has_login:
                socket.expel()
        for session_pk in found.waiting:
            if self.listener is not None:
                self.listener.consider(session_pk)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    heads: Mapping[int, Head]
    proofs: Mapping[str, str]
    login_keys: Collection[str]
    waiting: Collection[int]


def _sweep(
    *, session_pks: Collection[int], user_pks: Collection[str], login_keys: Collection[str]
) -> _Found:
    overdue = Turn.objects.overdue().values_list("session_id", flat=True)[:MAX_SWEPT_TURNS]
    for session_pk in set(overdue):
        try:
            services.end_overdue(session_pk)
        except MemoryUnavailable:
            pass  # its lock is held; go on
        except Exception:  # one damaged session must not keep all others from their sweep
            logger.exception("the overdue turn of session %s can't be ended", session_pk)
    waiting = Turn.objects.filter(status=Turn.Status.WAITING).values_list("session_id", flat=True)
    return _Found(
        heads=Session.objects.heads(session_pks) if session_pks else {},
        proofs=proofs_of(user_pks) if user_pks else {},
        login_keys=living_logins(login_keys) if login_keys else (),
        waiting=set(waiting[:MAX_SWEPT_TURNS]),
    )


_asweep = in_pool(_sweep)


class _Layer:
    """The channel layer: groups joined, hints sent, each call bounded, nothing awaited outside."""

    def __init__(
        self,
        hear: Callable[[str, Mapping[str, Any]], None],
        has_joined: Callable[[int], None],
    ) -> None:
        self._hear = hear
        self._has_joined = has_joined
        self._wanted: set[str] = set()
        self._joined: set[str] = set()
        self._outbox: dict[tuple[str, str, object], tuple[str, dict[str, Any]]] = {}
        self._texts: list[tuple[str, dict[str, Any]]] = []
        self._wake: asyncio.Event | None = None
        self._channel = ""
        self._is_failing = False

    @property
    def is_shared(self) -> bool:
        """Whether it reaches other processes."""
        try:
            layer = get_channel_layer()
        except InvalidChannelLayerError:
            return False
        return layer is not None and not isinstance(layer, InMemoryChannelLayer)

    def join(self, group: str) -> None:
        self._wanted.add(group)
        self._stir()

    def leave(self, group: str) -> None:
        self._wanted.discard(group)
        self._stir()

    def tell(self, group: str, kind: str, fields: Mapping[str, object]) -> None:
        """Send an event to a group soon. The same hint twice is one; old text may be lost."""
        if not self.is_shared:
            return
        event = {"type": f"chatmemory.{kind}", **fields}
        if kind == "text":
            self._texts.append((group, event))
            del self._texts[:-1000]
        else:
            self._outbox[group, kind, fields.get("session", fields.get("turn"))] = (group, event)
            if len(self._outbox) > MAX_HINTS:
                del self._outbox[next(iter(self._outbox))]
        self._stir()

    def _stir(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def run(self) -> None:
        if not self.is_shared:
            return
        # Asked for once: threads that ask at the same time are given layers of their own, and
        # what one receives the other can't join to a group.
        layer = get_channel_layer()
        self._wake = asyncio.Event()
        self._wake.set()
        receiver = asyncio.ensure_future(self._receive_for_ever(layer))
        try:
            while True:
                # Not wait_for: before Python 3.12 it swallows a cancellation that meets its result.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS):
                        await self._wake.wait()
                self._wake.clear()
                if self._channel:
                    await self._work_off(layer)
        finally:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)

    async def _work_off(self, layer: Any) -> None:
        for group in self._wanted - self._joined:
            if not await self._bounded(layer.group_add(group, self._channel)):
                return
            self._joined.add(group)
            if group != RUNNERS:
                self._has_joined(int(group.rpartition(".")[2]))
        for group in self._joined - self._wanted:
            if not await self._bounded(layer.group_discard(group, self._channel)):
                return
            self._joined.discard(group)
        hints, self._outbox = self._outbox, {}
        texts, self._texts = self._texts, []
        for group, event in (*hints.values(), *texts):
            if not await self._bounded(layer.group_send(group, {**event, "origin": self._channel})):
                return

    async def _bounded(self, call: Awaitable[object]) -> bool:
        try:
            async with asyncio.timeout(LAYER_SECONDS):
                await call
        except Exception as error:  # whatever the layer raises, it is only a hint
            self._note(error)
            return False
        self._note(None)
        return True

    def _note(self, error: Exception | None) -> None:
        """Log that the layer begins to fail, and that it works again."""
        if error is not None and not self._is_failing:
            logger.warning("the channel layer fails: %s", type(error).__name__)
        if error is None and self._is_failing:
            logger.info("the channel layer works again")
        self._is_failing = error is not None

    async def _receive_for_ever(self, layer: Any) -> None:
        while True:
            try:
                self._channel = await layer.new_channel()
                self._joined.clear()
                self._stir()
                while True:
                    event = await layer.receive(self._channel)
                    if event.get("origin") != self._channel:
                        self._hear(event["type"].removeprefix("chatmemory."), event)
            except Exception as error:  # the layer is lost, not the hub
                self._note(error)
                await asyncio.sleep(RETRY_SECONDS)


def _group(session_pk: int) -> str:
    return f"chatmemory.session.{session_pk}"


hub = Hub()
"""This process's."""
