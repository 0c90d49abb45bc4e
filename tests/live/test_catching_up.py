"""A client that follows frames has the same state as a new client, even if notifications are lost.

Also if some rows come from memory and others are read.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from contextlib import asynccontextmanager, suppress

import pytest
from asgiref.sync import sync_to_async as db
from channels.layers import channel_layers
from django.db import connection
from django.db.models import F

from chatmemory import receivers, services
from chatmemory.consumers import watcher as watcher_module
from chatmemory.database.after_commit import announce_change
from chatmemory.errors import ChatMemoryError
from chatmemory.live import feed
from chatmemory.live.hub import Hub, hub
from chatmemory.live.runner import runner
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import Actor
from tests.factories import make_messages, make_session
from tests.servers import DEADLINE, Closed, Tab, own_threads, sign_in

HERE = "tests.live.test_catching_up"
SERVER = Actor.server("test")


class LossyLayer:
    """A channel layer between the event loops of a process that loses half of its events."""

    lost = 0
    delivered = 0
    chance: random.Random

    def __init__(self) -> None:
        self.queues: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue]] = {}
        self.groups: dict[str, set[str]] = {}

    async def new_channel(self) -> str:
        name = f"channel{len(self.queues)}"
        self.queues[name] = (asyncio.get_running_loop(), asyncio.Queue())
        return name

    async def receive(self, channel):
        return await self.queues[channel][1].get()

    async def group_add(self, group, channel) -> None:
        self.groups.setdefault(group, set()).add(channel)

    async def group_discard(self, group, channel) -> None:
        self.groups.get(group, set()).discard(channel)

    async def group_send(self, group, event) -> None:
        for channel in tuple(self.groups.get(group, ())):
            loop, queue = self.queues[channel]
            if event["type"] in ("chatmemory.news", "chatmemory.text"):
                if self.chance.random() < 0.5:
                    LossyLayer.lost += 1
                    continue
                LossyLayer.delivered += 1
            loop.call_soon_threadsafe(queue.put_nowait, dict(event))


class MixedHub:
    """Passes half of the changes to the sockets as their own process does, in part late.

    The other half are notifications from another process, or lost.
    """

    def __init__(self, there: Hub, chance: random.Random) -> None:
        self.there = there
        self.chance = chance
        self.timers: list[threading.Timer] = []

    def __getattr__(self, name):
        return getattr(hub, name)

    def notify(self, session_pk, change=None, *, is_local=False) -> None:
        draw = self.chance.random()
        if change is None or draw < 0.15:
            hub.notify(session_pk, is_local=is_local)
        elif draw < 0.75:
            self.there.notify(session_pk, change)
        elif draw < 0.95:
            delay = self.chance.choice((0.001, 0.01, 0.1))
            self.timers.append(threading.Timer(delay, self.there.notify, (session_pk, change)))
            self.timers[-1].start()


async def words(messages, session):
    """Reply in pieces."""
    for number in range(10):
        yield f"word{number} "
        await asyncio.sleep(0.005)


class ClientState:
    """The state of a client, computed from frames as docs/reference/protocol.md describes."""

    def __init__(self) -> None:
        self.cursor: str | None = None
        self.clear()

    def clear(self) -> None:
        self.rows: dict[int, dict] = {}
        self.session: dict = {}

    def apply(self, frame) -> None:
        match frame["type"]:
            case "reset":
                self.clear()
            case "message":
                known = self.rows.get(frame["seq"])
                is_older = known is not None and known["revision"] > frame["revision"]
                is_below = bool(self.rows) and frame["seq"] < min(self.rows)
                if not is_older and not is_below:
                    self.rows[frame["seq"]] = frame
            case "session":
                known = self.session
                is_same = known.get("epoch") == frame["epoch"]
                if is_same and known["revision"] > frame["revision"]:
                    return
                self.session = frame
                low = frame["first_seq"]
                self.rows = {seq: row for seq, row in self.rows.items() if seq >= low}
            case "synced":
                self.cursor = frame["cursor"]


class Watcher:
    """A client that processes all frames and sometimes loses its connection."""

    def __init__(self, person) -> None:
        self.person = person
        self.state = ClientState()

    async def connect(self) -> None:
        self.tab = Tab(self.person)
        await self.tab.__aenter__()
        cursor = self.state.cursor
        await self.tab.send_frame("hello", v=1, **({"cursor": cursor} if cursor else {}))
        self.pump = asyncio.ensure_future(self._receive(self.tab))

    async def drop(self) -> None:
        self.pump.cancel()
        await asyncio.gather(self.pump, return_exceptions=True)
        await self.tab.__aexit__(None, None, None)

    async def _receive(self, tab) -> None:
        with suppress(Closed):
            while True:
                self.state.apply(await tab.next())


async def state_of_new_client(person) -> ClientState:
    """Return the state of a new client."""
    state = ClientState()
    async with Tab(person) as tab:
        await tab.hello()
    for frame in tab.frames:
        state.apply(frame)
    return state


@pytest.fixture
def seed(request) -> int:
    LossyLayer.chance = random.Random(request.param)  # noqa: S311  # no secret
    LossyLayer.lost = LossyLayer.delivered = 0
    return int(request.param)


@pytest.fixture
def applied(monkeypatch) -> Counter[bool]:
    """Counts the changes that a feed received: applied from memory, or not."""
    count: Counter[bool] = Counter()
    apply = feed.Feed._apply_change

    def counted(self):
        has_change = self.has_changes
        page = apply(self)
        if has_change:
            count[page is not None] += 1
        return page

    monkeypatch.setattr(feed.Feed, "_apply_change", counted)
    return count


@pytest.fixture
def ann(transactional_db, settings, monkeypatch, seed):
    """A user whose sockets use another hub than the runs and writes, mostly as another process."""
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 0.2)
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": f"{HERE}.LossyLayer"}}
    settings.CHATMEMORY = {
        "RESPONDER": f"{HERE}.words",
        "SENDS_PER_MINUTE": None,
        "CONNECTIONS_PER_USER": None,
    }
    channel_layers.backends.clear()
    channel_layers["default"]  # created once, before the hubs use it
    there = Hub(sweep_seconds=0.2)
    for module in (watcher_module, feed):
        monkeypatch.setattr(module, "hub", there)
    mixed = MixedHub(there, LossyLayer.chance)
    monkeypatch.setattr(receivers, "hub", mixed)
    with own_threads():
        person = sign_in()
        make_session(owner=person.user)
        services.append_messages(**person.talk, messages=make_messages(*map(str, range(60))))
        yield person
        for timer in mixed.timers:
            timer.join()
        there.shut_down()


def change_session(chance, person, number):
    """Change the session at random, as from another process than that of the sockets."""
    talk = person.talk
    session = Session.objects.get(key="talk", owner=person.user)
    match chance.choice(CHANGES):
        case "append":
            texts = [f"{number}.{part}" for part in range(chance.choice((1, 2, 3, 120)))]
            services.append_messages(**talk, messages=make_messages(*texts))
        case "turn":
            services.admit_turn(**talk, client_id=f"c{number}", content="hi", owner="")
        case "ask" | "regenerate" as kind:
            newest = Message.objects.filter(session=session, role="user").last()
            replaces = newest.seq if newest and kind == "regenerate" else None
            admitted = services.admit_turn(
                **talk,
                client_id=f"c{number}",
                content="hi",
                owner=runner.owner,
                replaces=replaces,
                expect_seq=replaces,
            )
            if admitted.claim is not None:
                runner.launch(admitted.claim)
        case "feedback":
            ended = Turn.objects.filter(session=session, ended_at__isnull=False).order_by("-pk")
            names = list(ended.values_list("client_id", flat=True)[:3])
            value = chance.choice((1, -1, None))
            services.set_feedback(**talk, turn=chance.choice(names or ["none"]), value=value)
        case "trim":
            services.trim_session(**talk, keep_last=chance.randrange(80), reason="test")
        case "redact":
            seq = max(session.first_seq, session.last_seq - chance.randrange(70))
            services.redact_message(**talk, seq=seq, reason="test")
        case "clear":
            services.clear_session(**talk, reason="test")
        case "restore":
            entry = AuditEntry.objects.filter(action__in=("trim", "clear")).order_by("-pk").first()
            if entry is not None:
                services.restore_session(entry_pk=entry.pk, by=talk["by"], reason="test")
        case "archive":
            services.archive_session(**talk, reason="test")
        case "unarchive":
            services.unarchive_session(**talk, reason="test")
        case "title":
            Session.objects.filter(pk=session.pk).update(
                title=f"title {number}", revision=F("revision") + 1
            )
            announce_change(session.pk)


CHANGES = [
    *["append"] * 6, *["turn"] * 3, *["ask"] * 5, *["regenerate"] * 3, *["redact"] * 6,
    *["feedback"] * 6, *["trim"] * 2, "clear", *["restore"] * 2,
    "archive", *["unarchive"] * 3, "title",
]  # fmt: skip


@db
def try_change(chance, person, number):
    with suppress(ChatMemoryError):  # busy, archived, nothing to restore
        change_session(chance, person, number)


@db
def append(person):
    with suppress(ChatMemoryError):  # busy
        services.append_messages(**person.talk, messages=make_messages("more"))


@asynccontextmanager
async def watching(*watchers):
    for watcher in watchers:
        await watcher.connect()
    try:
        yield
    finally:
        for watcher in watchers:
            await watcher.drop()


async def wait_until_settled(person, watchers) -> ClientState:
    """Wait until nothing runs and all watchers are up to date; return the state of a new client."""
    async with asyncio.timeout(DEADLINE):
        while True:
            state = await state_of_new_client(person)
            is_over = state.session["running"] is None and not state.session["waiting"]
            if is_over and all(watcher.state.cursor == state.cursor for watcher in watchers):
                return state
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(one, marks=pytest.mark.long) for one in (1, 2))], indirect=True
)
async def test_a_client_that_follows_frames_has_the_same_state_as_a_new_client(ann, applied):
    chance = LossyLayer.chance
    watchers = [Watcher(ann) for _ in range(2)]
    async with watching(*watchers):
        for number in range(35):
            await try_change(chance, ann, number)
            if chance.random() < 0.15:
                watcher = chance.choice(watchers)
                await watcher.drop()
                await watcher.connect()
            await asyncio.sleep(chance.choice((0, 0, 0.01, 0.1)))
        await db(services.unarchive_session)(**ann.talk, reason="test")
        if connection.vendor == "postgresql":  # elsewhere all rows are read
            async with asyncio.timeout(DEADLINE):
                while not (applied[True] and applied[False]):
                    await append(ann)
                    await asyncio.sleep(0.05)
        state = await wait_until_settled(ann, watchers)
    assert LossyLayer.lost > 0
    assert LossyLayer.delivered > 0
    for watcher in watchers:
        newest = {seq: row for seq, row in watcher.state.rows.items() if seq in state.rows}
        assert newest == state.rows
        assert watcher.state.session == state.session
        assert sorted(watcher.state.rows) == list(
            range(min(watcher.state.rows, default=0), max(watcher.state.rows, default=-1) + 1)
        )
