"""The hub of a process: its live sockets, the text of runs, and the hints between processes.

It has a thread and an event loop of its own, so neither a busy server loop nor a frozen channel
layer holds up the other. Nothing here is kept: what matters is in the database, a lost hint is
made good by the next sweep, and lost text by the finished row.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from chatmemory import services
from chatmemory.conf import settings
from chatmemory.layer import RUNNERS, Layer, group_of
from chatmemory.logs import log_error, watch_loop
from chatmemory.models import Head, Session, Turn
from chatmemory.responders import Progress
from chatmemory.services import Login
from chatmemory.services.fairness import sessions_to_sweep
from chatmemory.services.pool import in_pool

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 5.0
"""How long a sweep may be away."""
PUBLISH_SECONDS = 0.05
"""How often the new text of a run is told to other processes."""
RETURN_MS = 1_000
"""Within which the sockets of a process that ends come back."""
LEASE_END_SPREAD = 0.2
"""Within how many seconds of its end a dead process's lease is noticed."""
MAX_SWEPT_TURNS = 100


class Socket(Protocol):
    """What the hub knows of a websocket. All may be called from any thread."""

    @property
    def login(self) -> Login:
        """How its person was authenticated."""

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


class Place(NamedTuple):
    """The session of a streamed text.

    A restored database may assign the primary key to another session, which has another epoch.
    """

    session_pk: int
    epoch: int


@dataclass(slots=True)
class LiveText:
    """What one step of a run says, in pieces. A reader's place is a number of pieces."""

    turn: str
    step: int
    pieces: list[str | Progress] = field(default_factory=list)
    published: int = 0
    """Pieces told to other processes."""
    received: int = 0
    """In a mirror, the owner's pieces that arrived."""

    @property
    def text(self) -> str:
        """All that is said, without the progress between."""
        return "".join(piece for piece in self.pieces if isinstance(piece, str))


class Hub:
    """Sockets by session, texts by session, one task for all calls of the channel layer."""

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._sockets: defaultdict[int, set[Socket]] = defaultdict(set)
        self._heads: dict[int, Head | None] = {}
        self._texts: dict[Place, LiveText] = {}
        self._mirrors: dict[Place, LiveText] = {}
        self._unpublished: set[Place] = set()
        self._is_serving = False
        self._is_due = asyncio.Event()
        """Set when turns are to be swept now."""
        self._failed = 0
        """Overdue turns that the last sweeps could not end."""
        self._retires = ""
        self._layer = Layer(self._hear, self._has_joined, self._has_changed)

    # Called from any thread.

    def join(self, place: Place, socket: Socket) -> None:
        """Notify the socket of news of the session from now on."""
        self._is_serving = True
        with self._lock:
            self._sockets[place.session_pk].add(socket)
        self._call(self._follow, place)
        if self._retires:
            self._retire_one(socket)

    def leave(self, session_pk: int, socket: Socket) -> None:
        """The socket is told no more."""
        with self._lock:
            sockets = self._sockets.get(session_pk, set())
            sockets.discard(socket)
        if not sockets:
            self._call(self._forget, session_pk)

    def expel_user(self, user_pk: str) -> None:
        """Close all sockets of a user, in all processes: the right to be here has ended."""
        self._expel_user_here(user_pk)
        self._tell(RUNNERS, "user", user=user_pk)

    def expel_login(self, login_key: str) -> None:
        """The same for those that were opened with this login."""
        login = _login_digest(login_key)
        self._expel_login_here(login)
        self._tell(RUNNERS, "login", login=login)

    def retire(self, reason: str) -> None:
        """Send all sockets away, and whoever still comes."""
        self._retires = reason
        for socket in self._all_sockets():
            self._retire_one(socket)

    def _retire_one(self, socket: Socket) -> None:
        # Not all at once: where they go to, each asks the database for what it missed.
        socket.retire(self._retires, random.randrange(RETURN_MS))  # noqa: S311  # no secret

    @property
    def is_live(self) -> bool:
        """Whether what happens in other processes is heard of at once, not by the next sweep."""
        return not self._layer.is_failing

    @property
    def is_empty(self) -> bool:
        """Whether nobody is here."""
        with self._lock:
            return not any(self._sockets.values())

    @property
    def has_told_all(self) -> bool:
        """Whether no hint for other processes is left."""
        return not self._layer.has_hints

    def serve(self) -> None:
        """This process runs turns: hear of those that wait, and sweep, now and from now on."""
        self._is_serving = True
        self._call(self._layer.join, RUNNERS)
        self._call(self._is_due.set)

    def begin_sweeps(self) -> None:
        """End overdue turns from now on, even if this process runs none. Idempotent."""
        if not self._is_serving:
            self.serve()

    def begin_text(self, place: Place, turn: str, step: int) -> LiveText:
        """Start the text of a step of a run in this process."""
        text = self._texts[place] = LiveText(turn, step)
        if self._layer.is_shared:
            self._call(self._layer.join, RUNNERS)  # there, sockets elsewhere ask for the whole
        return text

    def grew(self, place: Place) -> None:
        """Publish the new pieces of a text of this process."""
        self._say(place.session_pk)
        if place not in self._unpublished and self._layer.is_shared:
            self._call(self._publish_soon, place)

    def end_text(self, place: Place, turn: str) -> None:
        """Drop the text of a turn that ended: its rows contain it."""
        for texts in (self._texts, self._mirrors):
            text = texts.get(place)
            if text is not None and text.turn == turn:
                texts.pop(place, None)

    def text_of(self, place: Place) -> LiveText | None:
        """The text of the session's run, of this process or another's."""
        return self._texts.get(place) or self._mirrors.get(place)

    def poke(self, session_pk: int) -> None:
        """A session has news: tell its sockets, here and in other processes."""
        self._poke_here(session_pk)
        self._tell(group_of(session_pk), "news", session=session_pk)

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
        self._is_due = asyncio.Event()
        self._failed = 0
        self._retires = ""
        self._layer = Layer(self._hear, self._has_joined, self._has_changed)

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
        watch_loop(loop, logger)
        work = [
            self._layer.run(),
            self._repeat(self._sweep_heads, asyncio.Event()),
            self._repeat(self._sweep_logins, asyncio.Event()),
            self._repeat(self._sweep_turns, self._is_due),
        ]
        tasks = [loop.create_task(one) for one in work]
        loop.run_forever()
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        if left := asyncio.all_tasks(loop):  # a sweep's call of the database goes on
            loop.run_until_complete(asyncio.wait(left, timeout=2))
        loop.close()

    # Hints between processes.

    def _tell(self, group: str, kind: str, **fields: object) -> None:
        if self._layer.is_shared:
            self._call(self._layer.tell, group, kind, fields)

    def _follow(self, place: Place) -> None:
        self._layer.join(group_of(place.session_pk))
        if self.text_of(place) is None:
            self._ask_for_whole(place.session_pk)

    def _has_joined(self, session_pk: int) -> None:
        """What was said while the layer subscribed was lost: look."""
        self._poke_here(session_pk)

    def _has_changed(self) -> None:
        """The layer began to fail, or works again: sockets say so."""
        for socket in self._all_sockets():
            socket.say()

    def _ask_for_whole(self, session_pk: int) -> None:
        # Of the runners, since who runs the turn need not have a socket of the session.
        self._layer.tell(RUNNERS, "whole", {"session": session_pk})

    def _forget(self, session_pk: int) -> None:
        with self._lock:
            if self._sockets.get(session_pk):
                return
            self._sockets.pop(session_pk, None)
        for place in self._places(self._mirrors, session_pk):
            self._mirrors.pop(place, None)
        self._heads.pop(session_pk, None)
        self._layer.leave(group_of(session_pk))

    def _places(self, texts: Mapping[Place, LiveText], session_pk: int) -> list[Place]:
        return [place for place in tuple(texts) if place.session_pk == session_pk]

    def _publish_soon(self, place: Place) -> None:
        if place not in self._unpublished:
            self._unpublished.add(place)
            asyncio.get_running_loop().call_later(PUBLISH_SECONDS, self._publish, place)

    def _publish_whole(self, session_pk: int) -> None:
        for place in self._places(self._texts, session_pk):
            self._publish(place, whole=True)

    def _publish(self, place: Place, *, whole: bool = False) -> None:
        self._unpublished.discard(place)
        text = self._texts.get(place)
        if text is None:
            return
        begin, end = 0 if whole else text.published, len(text.pieces)
        if begin < end or whole:
            pieces = _packed(text.pieces[begin:end])
            fields = {"turn": text.turn, "step": text.step, "from": begin, "to": end}
            text.published = end
            where = {"session": place.session_pk, "epoch": place.epoch}
            self._layer.tell(
                group_of(place.session_pk), "text", {**where, "pieces": pieces, **fields}
            )

    def _hear(self, kind: str, event: Mapping[str, Any]) -> None:
        match kind:
            case "news":
                self._poke_here(event["session"])
            case "text":
                self._mirror(event)
            case "whole":
                self._publish_whole(event["session"])
            case "user":
                self._expel_user_here(event["user"])
            case "login":
                self._expel_login_here(event["login"])
            case "work" if self.listener is not None:
                self.listener.consider(event["session"])
            case "stop" if self.listener is not None:
                self.listener.stop(event["turn"])

    def _mirror(self, event: Mapping[str, Any]) -> None:
        place = Place(event["session"], event["epoch"])
        session_pk = place.session_pk
        if place in self._texts or not self._sockets.get(session_pk):
            return
        text = self._mirrors.get(place)
        is_same = text is not None and (text.turn, text.step) == (event["turn"], event["step"])
        if event["from"] == 0 and not (is_same and text and text.received >= event["to"]):
            pieces = _unpacked(event["pieces"])
            text = LiveText(event["turn"], event["step"], pieces, received=event["to"])
            self._mirrors[place] = text
            self._poke_here(session_pk)  # if the hint that the run began was lost
        elif text is not None and is_same and event["from"] == text.received:
            text.pieces += _unpacked(event["pieces"])
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

    async def _repeat(self, sweep: Callable[[], Awaitable[float]], is_due: asyncio.Event) -> None:
        """Call a sweep after as many seconds as it returned, or as soon as it is due."""
        pause = 0.0
        while True:
            # Not wait_for: before Python 3.12 it swallows a cancellation that meets its result.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await is_due.wait()
            is_due.clear()
            pause = SWEEP_SECONDS
            if self._is_serving and settings.DB_THREADS:
                try:
                    pause = await sweep()
                except Exception as error:
                    log_error(logger, "a sweep failed; the next is in %s s", pause, error=error)

    def _all_sockets(self) -> set[Socket]:
        with self._lock:
            return {socket for group in self._sockets.values() for socket in group}

    def _expel_user_here(self, user_pk: str) -> None:
        for socket in self._all_sockets():
            if socket.login.actor.id == user_pk:
                socket.expel()

    def _expel_login_here(self, login: str) -> None:
        for socket in self._all_sockets():
            key = socket.login.key
            if key is not None and _login_digest(key) == login:
                socket.expel()

    # Each has a task of its own, so that none waits for the database on behalf of another.

    async def _sweep_heads(self) -> float:
        """Poke the sockets of sessions that changed: a hint may have been lost."""
        heads = await _aheads(tuple(self._sockets))
        for session_pk in tuple(self._sockets):
            head = heads.get(session_pk)
            if session_pk not in self._heads or self._heads[session_pk] != head:
                self._heads[session_pk] = head
                self._poke_here(session_pk)
        for place, mirror in tuple(self._mirrors.items()):
            head = heads.get(place.session_pk)
            if head is None or (head.epoch, head.running) != (place.epoch, mirror.turn):
                self._mirrors.pop(place, None)  # its turn ended
        return SWEEP_SECONDS

    async def _sweep_logins(self) -> float:
        """Expel the sockets whose login has ended.

        If that cannot be checked, they stay for now: each write checks its login by itself. A
        function of the host that fails or hangs keeps only those that it alone can end.
        """
        sockets = self._all_sockets()
        standing = await services.astanding_logins({socket.login for socket in sockets})
        _expel_others(sockets, standing)
        _expel_others(sockets, await services.aallowed_logins(standing))
        return SWEEP_SECONDS

    async def _sweep_turns(self) -> float:
        """End overdue turns, and claim waiting ones."""
        turns = await _ahelp(self._failed)
        self._failed = turns.failed
        for session_pk in turns.waiting:
            if self.listener is not None:
                self.listener.consider(session_pk)
        # A lease that was seen is never missed: no sweep is further away than one lasts.
        pause = min(SWEEP_SECONDS, settings.LEASE)
        if turns.lease_ends_in is not None:
            # Not all processes at once.
            spread = random.uniform(0.02, LEASE_END_SPREAD)  # noqa: S311  # no secret
            pause = min(pause, turns.lease_ends_in + spread)
        return pause


def _expel_others(sockets: Iterable[Socket], logins: Collection[Login]) -> None:
    for socket in sockets:
        if socket.login not in logins:
            socket.expel()


def _packed(pieces: Iterable[str | Progress]) -> list[str | list[str]]:
    """Pieces as a channel layer can carry them, text that stands together as one."""
    packed: list[str | list[str]] = []
    for is_text, together in groupby(pieces, lambda piece: isinstance(piece, str)):
        if is_text:
            packed.append("".join(map(str, together)))
        else:
            packed += (list(astuple(event)) for event in together)  # type: ignore[arg-type]  # no text
    return packed


def _unpacked(pieces: Iterable[str | list[str]]) -> list[str | Progress]:
    return [piece if isinstance(piece, str) else Progress(*piece) for piece in pieces]  # type: ignore[arg-type]  # packed here


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    waiting: Collection[int]
    lease_ends_in: float | None
    failed: int
    """Overdue turns to skip at the next sweep."""


def _login_digest(login_key: str) -> str:
    """What stands for the key of a Django session outside its process: who has the key is in."""
    return hashlib.sha256(login_key.encode()).hexdigest()


def _help(skip: int = 0) -> _Turns:
    """End overdue turns; return where a turn waits, and when the next lease ends.

    `skip` are overdue turns that could not be ended before: the next ones come first.
    """
    ended = services.end_all_overdue(limit=MAX_SWEPT_TURNS, skip=skip)
    return _Turns(
        waiting=sessions_to_sweep(limit=MAX_SWEPT_TURNS),
        lease_ends_in=Turn.objects.seconds_to_lease_end(),
        failed=0 if ended.is_all else skip + ended.failed,
    )


_aheads = in_pool(Session.objects.heads)
_ahelp = in_pool(_help)


hub = Hub()
"""This process's."""
