"""What a client knows by events equals what a fresh one is told, however many hints are lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager, suppress

import pytest
from asgiref.sync import sync_to_async as db
from channels.layers import channel_layers
from django.db.models import F

from chatmemory import services
from chatmemory.consumers import chat, feed
from chatmemory.errors import ChatMemoryError
from chatmemory.hub import Hub
from chatmemory.models import AuditEntry, Session
from chatmemory.services import Actor
from chatmemory.services.news import tell
from tests.factories import make_session, said
from tests.servers import DEADLINE, Closed, Tab, own_threads, sign_in

HERE = "tests.test_catching_up"
SERVER = Actor.server("test")


class LossyLayer:
    """A channel layer between the event loops of a process, that loses some of what it carries."""

    lost = 0
    carried = 0
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
                LossyLayer.carried += 1
            loop.call_soon_threadsafe(queue.put_nowait, dict(event))


async def words(messages, session):
    """A reply in pieces."""
    for number in range(10):
        yield f"word{number} "
        await asyncio.sleep(0.005)


class Knowledge:
    """What a client makes of the frames, as the protocol's page tells it to."""

    def __init__(self) -> None:
        self.cursor: str | None = None
        self.forget()

    def forget(self) -> None:
        self.rows: dict[int, dict] = {}
        self.session: dict = {}

    def take(self, frame) -> None:
        match frame["type"]:
            case "reset":
                self.forget()
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
    """A client that takes in whatever comes, and now and then loses its connection."""

    def __init__(self, person) -> None:
        self.person = person
        self.knows = Knowledge()

    async def connect(self) -> None:
        self.tab = Tab(self.person)
        await self.tab.__aenter__()
        cursor = self.knows.cursor
        await self.tab.say("hello", v=1, **({"cursor": cursor} if cursor else {}))
        self.pump = asyncio.ensure_future(self._take_in(self.tab))

    async def drop(self) -> None:
        self.pump.cancel()
        await asyncio.gather(self.pump, return_exceptions=True)
        await self.tab.__aexit__(None, None, None)

    async def _take_in(self, tab) -> None:
        with suppress(Closed):
            while True:
                self.knows.take(await tab.next())


async def fresh(person) -> Knowledge:
    """What a new client is told."""
    knows = Knowledge()
    async with Tab(person) as tab:
        await tab.hello()
    for frame in tab.frames:
        knows.take(frame)
    return knows


@pytest.fixture
def ann(transactional_db, settings, monkeypatch):
    """Her sockets are in another process, so to speak, than the runs and the writes."""
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 0.2)
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": f"{HERE}.LossyLayer"}}
    settings.CHATMEMORY = {
        "RESPONDER": f"{HERE}.words",
        "SENDS_PER_MINUTE": None,
        "CONNECTIONS_PER_USER": None,
    }
    channel_layers.backends.clear()
    channel_layers["default"]  # made once, before the hubs ask for it
    there = Hub()
    for module in (chat, feed):
        monkeypatch.setattr(module, "hub", there)
    with own_threads():
        person = sign_in()
        make_session(owner=person.user)
        services.append_messages(**person.talk, messages=said(*map(str, range(60))))
        yield person
        there.shut_down()


def act(chance, person, number):
    """Something that changes the session, from another process than the sockets'."""
    talk = person.talk
    session = Session.objects.get(key="talk", owner=person.user)
    match chance.choice(ACTS):
        case "append":
            texts = [f"{number}.{part}" for part in range(chance.choice((1, 2, 3, 120)))]
            services.append_messages(**talk, messages=said(*texts))
        case "turn":
            services.admit_turn(**talk, client_id=f"c{number}", content="hi", owner="")
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
            tell(session.pk)


ACTS = [
    *["append"] * 6, *["turn"] * 4, *["redact"] * 6, *["trim"] * 2, "clear", *["restore"] * 2,
    "archive", *["unarchive"] * 3, "title",
]  # fmt: skip


@db
def do(chance, person, number):
    with suppress(ChatMemoryError):  # busy, archived, nothing to restore
        act(chance, person, number)


@asynccontextmanager
async def watching(*watchers):
    for watcher in watchers:
        await watcher.connect()
    try:
        yield
    finally:
        for watcher in watchers:
            await watcher.drop()


async def settled(person, watchers) -> Knowledge:
    """What a fresh client knows, once nothing goes on and all have caught up."""
    async with asyncio.timeout(DEADLINE):
        while True:
            knows = await fresh(person)
            is_over = knows.session["running"] is None and not knows.session["waiting"]
            if is_over and all(watcher.knows.cursor == knows.cursor for watcher in watchers):
                return knows
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_what_is_known_by_events_equals_a_fresh_fetch(ann, seed):
    chance = LossyLayer.chance = random.Random(seed)  # noqa: S311  # no secret
    LossyLayer.lost = LossyLayer.carried = 0
    watchers = [Watcher(ann) for _ in range(2)]
    async with watching(*watchers):
        for number in range(25):
            await do(chance, ann, number)
            if chance.random() < 0.15:
                watcher = chance.choice(watchers)
                await watcher.drop()
                await watcher.connect()
            await asyncio.sleep(chance.choice((0, 0, 0.01)))
        await db(services.unarchive_session)(**ann.talk, reason="test")
        knows = await settled(ann, watchers)
    assert LossyLayer.lost > 0
    assert LossyLayer.carried > 0
    for watcher in watchers:
        newest = {seq: row for seq, row in watcher.knows.rows.items() if seq in knows.rows}
        assert newest == knows.rows
        assert watcher.knows.session == knows.session
        assert sorted(watcher.knows.rows) == list(
            range(min(watcher.knows.rows, default=0), max(watcher.knows.rows, default=-1) + 1)
        )
