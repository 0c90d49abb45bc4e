"""The Python client: with this project's server, and with a scripted one."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from chatmemory import services
from chatmemory.client import (
    Chat,
    Closed,
    Lost,
    Message,
    NoReply,
    Piece,
    Progress,
    Refused,
    Reset,
    Synced,
    connect,
    pauses,
)
from chatmemory.client import chat as client
from chatmemory.models import Message as Row
from chatmemory.models import Turn
from tests import responders_for_tests
from tests.factories import make_messages, make_session
from tests.servers import (
    DEADLINE,
    eventually,
    free_port,
    live_process,
    serving,
    sign_in,
    use_responder,
)

process = live_process


@pytest.fixture
def live(process, settings, monkeypatch):
    monkeypatch.setattr(pauses, "FIRST_RETRY_SECONDS", 0.01)
    settings.ALLOWED_HOSTS = ["127.0.0.1"]


@pytest.fixture
def ann(live):
    person = sign_in()
    make_session(owner=person.user)
    return person


def chat(address: str, person: Any, key: str = "talk", **options: Any) -> Chat:
    cookies = {django_settings.SESSION_COOKIE_NAME: person.cookie}
    return connect(f"{address}/ws/chat/{key}/", cookies=cookies, proxy=None, **options)


async def cut(talk: Chat) -> None:
    """Drop the connection without a close frame, as a network does."""
    assert isinstance(talk._socket, ClientConnection)
    talk._socket.transport.abort()


async def within(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(DEADLINE):
        return await work


async def test_a_question_is_answered(ann):
    async with serving() as address, chat(address, ann) as talk:
        reply = await within(talk.ask("good morning"))
        assert (reply.text, reply.role, reply.status) == ("good morning ", "assistant", "complete")
        assert [row.text for row in talk.messages] == ["good morning", "good morning "]
        assert talk.session["running"] is None
        again = await within(talk.ask("and again"))
        assert (again.seq, again.text) == (4, "and again ")


async def test_the_newest_messages_arrive_first_and_older_ones_can_be_fetched(ann):
    texts = [str(n) for n in range(60)]
    await db(services.append_messages)(**ann.talk, messages=make_messages(*texts))
    async with serving() as address, chat(address, ann) as talk:
        assert [row.text for row in talk.messages] == texts[10:]
        assert [row.text for row in await within(talk.fetch(limit=5))] == texts[5:10]
        assert [row.text for row in talk.messages] == texts[5:]


async def test_text_and_progress_arrive_as_events(ann, settings):
    use_responder(settings, "with_progress")
    responders_for_tests.GO.set()
    async with serving() as address, chat(address, ann) as talk:
        events = talk.events()
        reply = await within(talk.ask("hi"))
        text, states = "", []
        async for event in events:
            match event:
                case Piece(text=piece, is_whole=is_whole):
                    text = piece if is_whole else text + piece
                case Progress(name="weather", state=state):
                    states.append(state)
                case Message() if event == reply:
                    break
    assert reply.text.startswith(text)
    # The row replaces the events of the last tick.
    assert states in ([], ["started"], ["ended"], ["started", "ended"])
    assert [event async for event in talk.events()] == []


async def test_a_failed_turn_has_a_reply_with_its_error(ann, settings):
    use_responder(settings, "failing")
    async with serving() as address, chat(address, ann) as talk:
        reply = await within(talk.ask("hi"))
    assert (reply.text, reply.status, reply.error) == ("So far, ", "failed", "responder_error")


async def test_stop_interrupts_a_turn(ann, settings, monkeypatch):
    monkeypatch.setattr("chatmemory.live.runner.runner.keeper.seconds", 0.1)
    use_responder(settings, "endless")
    async with serving() as address, chat(address, ann) as talk:
        turn = await talk.send("hi")
        await eventually(responders_for_tests.BEGUN.is_set)
        assert await within(talk.stop(turn)) in ("running", "interrupted")
        assert (await within(talk.reply(turn))).status == "interrupted"
        with pytest.raises(Refused) as refused:
            await talk.stop()
    assert refused.value.code == "unknown_turn"


async def test_rename_changes_the_title(ann, settings):
    use_responder(settings, "echo")
    async with serving() as address, chat(address, ann) as talk:
        await within(talk.rename("A kettle"))
        await eventually(lambda: talk.session["title"] == "A kettle")
        with pytest.raises(Refused) as refused:
            await talk.rename("x" * 201)
    assert refused.value.code == "bad_field"


async def test_feedback_is_shown_by_the_reply(ann, settings):
    use_responder(settings, "echo")
    async with serving() as address, chat(address, ann) as talk:
        turn = await talk.send("hi")
        reply = await within(talk.reply(turn))
        await within(talk.feedback(turn, -1, "Wrong."))
        await eventually(lambda: talk.rows[reply.seq].fields["feedback"] == -1)
        await within(talk.feedback(turn.turn, None))
        await eventually(lambda: talk.rows[reply.seq].fields["feedback"] is None)
        with pytest.raises(Refused) as refused:
            await talk.feedback("unknown", 1)
    assert refused.value.code == "unknown_turn"


async def test_a_refusal_has_the_code_of_the_server(ann, settings):
    use_responder(settings, "slow")
    async with serving() as address, chat(address, ann) as talk:
        for text, code in (("", "empty"), ("a\0", "bad_text"), ("x" * 32_001, "too_large")):
            with pytest.raises(Refused) as refused:
                await talk.send(text)
            assert (refused.value.code, refused.value.retry) == (code, False)
        with pytest.raises(Refused) as refused:
            await talk.send("x" * 300_000)
        assert (refused.value.code, refused.value.limit) == ("too_large", 256 * 1024)
        await talk.send("hi", client_id="c1")
        with pytest.raises(Refused) as refused:
            await talk.send("no", client_id="c1")
        assert refused.value.code == "conflict"


async def test_a_repeated_client_id_is_the_same_turn(ann):
    async with serving() as address, chat(address, ann) as talk:
        await within(talk.ask("hi", client_id="c1"))
        turn = await talk.send("hi", client_id="c1")
        assert (turn.is_duplicate, turn.status) == (True, "complete")
        assert (await within(talk.reply(turn))).text == "hi "


async def test_the_reply_to_an_old_message_is_fetched(ann):
    async with serving() as address:
        async with chat(address, ann) as talk:
            await within(talk.ask("hi", client_id="c1"))
        await db(services.append_messages)(**ann.talk, messages=make_messages(*map(str, range(60))))
        async with chat(address, ann) as talk:
            assert (await within(talk.ask("hi", client_id="c1"))).text == "hi "


async def test_a_reconnected_client_misses_nothing(ann, settings):
    use_responder(settings, "slow")
    async with serving() as address, chat(address, ann) as talk:
        events = talk.events()
        turn = await talk.send("hi")
        await eventually(responders_for_tests.BEGUN.is_set)
        await cut(talk)
        responders_for_tests.GO.set()
        reply = await within(talk.reply(turn))
        assert reply.text == "So far, so good."
        received = await within(_until_synced(events, times=2))
    assert any(isinstance(event, Lost) for event in received)
    assert await db(Row.objects.count)() == 2


async def _until_synced(events: Any, *, times: int) -> list[Any]:
    """Return the events until this number of `Synced`."""
    received: list[Any] = []
    while sum(isinstance(event, Synced) for event in received) < times:
        received.append(await anext(events))
    return received


@pytest.mark.slow
async def test_the_client_reconnects_to_a_restarted_server(ann):
    port = free_port()
    async with serving(port) as address:
        talk = await chat(address, ann).__aenter__()
        await within(talk.ask("one"))
    sending = asyncio.ensure_future(talk.ask("two"))
    async with serving(port):
        assert (await within(sending)).text == "two "
        await talk.__aexit__()


async def test_a_clear_resets_the_chat_and_a_purge_ends_it(ann):
    await db(services.append_messages)(**ann.talk, messages=make_messages("a", "b"))
    async with serving() as address, chat(address, ann) as talk:
        events = talk.events()
        await db(services.clear_session)(**ann.talk, reason="test")
        async for event in events:
            if isinstance(event, Reset):
                assert event == Reset("cleared", 0)
                break
        assert talk.messages == []
        await within(talk.ask("hi"))
        await db(services.purge_session)(**ann.talk, reason="test")
        with pytest.raises(Closed) as closed:
            await within(_until_synced(events, times=100))
        assert (closed.value.code, closed.value.reason) == (4404, "not_found")
        with pytest.raises(Closed):
            await talk.send("still there?")


async def test_a_session_is_created_only_with_create(ann):
    key = str(uuid.uuid4())
    async with serving() as address:
        with pytest.raises(Closed) as closed:
            async with chat(address, ann, key):
                pass
        assert closed.value.code == 4404
        async with chat(address, ann, key, create=True) as talk:
            assert (await within(talk.ask("hi"))).seq == 2


async def test_a_client_without_login_is_closed(live, ann):
    async with serving() as address:
        with pytest.raises(Closed) as closed:
            async with connect(f"{address}/ws/chat/talk/", proxy=None):
                pass
        assert (closed.value.code, closed.value.reason) == (4401, "unauthenticated")
        with pytest.raises(Closed) as closed:
            async with chat(address, ann, origin="http://evil.example"):
                pass
    assert closed.value.code == 403


async def test_without_time_to_retry_a_missing_server_is_an_immediate_error():
    with pytest.raises(Closed) as closed:
        async with connect(
            f"ws://127.0.0.1:{free_port()}/", proxy=None, first_connection_seconds=0
        ):
            pass
    assert closed.value.code == 1006


@pytest.mark.regression
async def test_the_client_waits_for_a_server_that_is_starting(ann, monkeypatch):
    port, attempted = free_port(), asyncio.Event()
    open_socket = client.open_socket

    def note_attempt(*args, **kwargs):
        attempted.set()
        return open_socket(*args, **kwargs)

    monkeypatch.setattr(client, "open_socket", note_attempt)
    entering = asyncio.ensure_future(chat(f"http://127.0.0.1:{port}", ann).__aenter__())
    for _ in range(2):  # the second attempt follows the failure of the first
        await within(attempted.wait())
        attempted.clear()
    assert not entering.done()
    async with serving(port):
        talk = await within(entering)
        assert (await within(talk.ask("hi"))).text == "hi "
        await talk.__aexit__()


@pytest.mark.regression
@pytest.mark.parametrize("status", [b"502 Bad Gateway", b"503 Service Unavailable", b""])
async def test_a_proxy_whose_server_is_starting_is_retried(status):
    attempts = asyncio.Queue()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        attempts.put_nowait(None)
        if status:
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        talk = connect(f"ws://127.0.0.1:{port}/", proxy=None)
        entering = asyncio.ensure_future(talk.__aenter__())
        for _ in range(3):
            await within(attempts.get())
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)


@pytest.mark.parametrize("host", ["nowhere.invalid", "127.0.0.1"])
async def test_a_wrong_address_is_not_retried(host):
    connections = []

    async def answer(reader, writer):
        connections.append(await reader.readline())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Closed):
            await within(connect(f"ws://{host}:{port}/", proxy=None).__aenter__())
    assert len(connections) == (host == "127.0.0.1")


async def test_an_invalid_url_is_a_value_error():
    for url in ("talk", "ftp://example.org/"):
        with pytest.raises(ValueError, match="not the URL"):
            async with connect(url):
                pass


async def test_a_cancelled_turn_has_no_reply(ann, monkeypatch):
    monkeypatch.setattr(client, "STATUS_POLL_SECONDS", 0.05)
    monkeypatch.setattr("chatmemory.live.runner.Runner.owner", "")
    async with serving() as address, chat(address, ann) as talk:
        turn = await talk.send("hi")
        assert turn.status == "waiting"
        replying = asyncio.ensure_future(talk.reply(turn))
        await asyncio.sleep(0)
        assert await db(services.stop_turn)(**ann.talk, turn=turn.turn) == "cancelled"
        with pytest.raises(NoReply):
            await within(replying)
    assert await db(lambda: Turn.objects.get().status)() == "cancelled"


SESSION: dict[str, Any] = {
    "type": "session",
    "epoch": 1,
    "first_seq": 1,
    "revision": 1,
    "waiting": [],
}
WELCOME: list[dict[str, Any]] = [
    {"type": "welcome", "v": 1, "limits": {"max_frame_bytes": 1_000}},
    {**SESSION, "last_seq": 0, "running": None},
    {"type": "synced", "cursor": "c0"},
]


class ScriptedServer:
    """A server that runs one function of the test for each connection, and records the frames."""

    def __init__(self, *connections: Callable[[ScriptedServer, Any], Awaitable[None]]) -> None:
        self._connections: Iterator[Any] = iter(connections)
        self.frames: list[dict[str, Any]] = []
        self.requests: list[Any] = []

    async def __call__(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.requests.append(socket.request)
        await next(self._connections)(self, socket)

    async def receive(self, socket: Any) -> dict[str, Any]:
        frame: dict[str, Any] = json.loads(await socket.recv())
        self.frames.append(frame)
        return frame

    async def welcome(self, socket: Any) -> None:
        await self.receive(socket)
        await self.send(socket, *WELCOME)

    async def send(self, socket: Any, *frames: dict[str, Any]) -> None:
        for frame in frames:
            await socket.send(json.dumps(frame))


@asynccontextmanager
async def scripted(*connections: Any) -> AsyncIterator[tuple[ScriptedServer, str]]:
    server = ScriptedServer(*connections)
    protocols = [Subprotocol("chatmemory.v1")]
    async with serve(server, "127.0.0.1", 0, subprotocols=protocols) as listening:
        port = listening.sockets[0].getsockname()[1]
        yield server, f"ws://127.0.0.1:{port}/ws/chat/talk/"


def row(seq: int, text: str, **fields: Any) -> dict[str, Any]:
    role = fields.pop("role", "assistant")
    defaults = {"seq": seq, "revision": 0, "role": role, "text": text, "status": "complete"}
    return {"type": "message", "turn": "t", "step": None, "client_id": None, **defaults, **fields}


async def until_closed(server: ScriptedServer, socket: Any) -> None:
    await server.welcome(socket)
    await socket.wait_closed()


async def welcome_and_abort(server: ScriptedServer, socket: Any) -> None:
    await server.welcome(socket)
    socket.transport.abort()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(pauses, "FIRST_RETRY_SECONDS", 0.01)


async def test_an_unacknowledged_message_is_resent_with_its_client_id():
    async def losing(server: ScriptedServer, socket: Any) -> None:
        await server.welcome(socket)
        await server.receive(socket)
        socket.transport.abort()

    async def answering(server: ScriptedServer, socket: Any) -> None:
        await server.welcome(socket)
        frame = await server.receive(socket)
        ok = {"type": "ok", "id": frame["id"], "turn": frame["client_id"], "status": "complete"}
        await server.send(socket, {**ok, "seq": 1, "duplicate": True})
        await socket.wait_closed()

    async with scripted(losing, answering) as (server, url), connect(url, proxy=None) as talk:
        turn = await within(talk.send("hi"))
    assert (turn.is_duplicate, turn.seq) == (True, 1)
    first, again = [frame for frame in server.frames if frame["type"] == "send"]
    assert first["client_id"] == again["client_id"]
    assert (first["text"], first["epoch"]) == (again["text"], again["epoch"]) == ("hi", 1)
    assert server.frames[2] == {"type": "hello", "v": 1, "cursor": "c0"}


async def test_silence_is_a_lost_connection(monkeypatch):
    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.1)
    async with (
        scripted(until_closed, until_closed) as (server, url),
        connect(url, proxy=None) as talk,
    ):
        events = talk.events()
        [lost, *_] = await within(_until_synced(events, times=1))
    assert (lost.code, lost.reason) == (1006, "the server does not respond")
    assert len(server.requests) >= 2


async def test_a_ping_is_answered():
    async def pinging(server: ScriptedServer, socket: Any) -> None:
        await server.welcome(socket)
        await server.send(socket, {"type": "ping", "n": 7})
        await server.receive(socket)

    async with scripted(pinging, until_closed) as (server, url), connect(url, proxy=None) as talk:
        await within(_until_synced(talk.events(), times=1))
    assert {"type": "pong", "n": 7} in server.frames


@pytest.mark.parametrize(
    ("bye", "is_over"),
    [
        ({"code": 4503, "reason": "shutting_down", "reconnect": True, "after_ms": 120}, False),
        ({"code": 4409, "reason": "too_many", "reconnect": False, "after_ms": None}, True),
    ],
)
async def test_a_bye_decides_whether_to_reconnect(bye, is_over):
    async def leaving(server: ScriptedServer, socket: Any) -> None:
        await server.welcome(socket)
        await server.send(socket, {"type": "bye", **bye})
        await socket.wait_closed()

    async with scripted(leaving, until_closed) as (server, url), connect(url, proxy=None) as talk:
        events = talk.events()
        if is_over:
            with pytest.raises(Closed) as closed:
                await within(_until_synced(events, times=2))
            assert (closed.value.code, closed.value.reason) == (4409, "too_many")
        else:
            received = await within(_until_synced(events, times=1))
            [lost] = [event for event in received if isinstance(event, Lost)]
            assert (lost.code, lost.reason) == (4503, "shutting_down")
            assert lost.seconds >= 0.12
    assert len(server.requests) == (1 if is_over else 2)


async def test_the_pauses_are_random_and_their_limit_grows_to_ten_seconds(monkeypatch):
    ranges: list[tuple[float, float]] = []
    monkeypatch.setattr(pauses, "FIRST_RETRY_SECONDS", 0.5)
    monkeypatch.setattr(client.random, "uniform", lambda *limits: ranges.append(limits) or 0)

    async def broken(server: ScriptedServer, socket: Any) -> None:
        socket.transport.abort()

    connections = (welcome_and_abort, *[broken] * 7, until_closed)
    async with scripted(*connections) as (_, url), connect(url, proxy=None) as talk:
        await within(_until_synced(talk.events(), times=1))
    assert ranges == [(0, n) for n in (0.5, 1, 2, 4, 8, 10, 10, 10)]


def test_the_pause_after_a_day_of_failures_is_ten_seconds(monkeypatch):
    monkeypatch.setattr(pauses, "FIRST_RETRY_SECONDS", 0.5)
    assert pauses.max_pause(24 * 60 * 60) == 10


@pytest.mark.parametrize("after_ms", [-5_000, 10**400])
async def test_the_pause_that_a_server_requests_is_bounded(monkeypatch, after_ms):
    monkeypatch.setattr(client, "MAX_AFTER_MS", 20)

    async def leaving(server: ScriptedServer, socket: Any) -> None:
        await server.welcome(socket)
        bye = {"code": 4503, "reason": "rotating", "reconnect": True, "after_ms": after_ms}
        await server.send(socket, {"type": "bye", **bye})
        await socket.wait_closed()

    async with scripted(leaving, until_closed) as (_, url), connect(url, proxy=None) as talk:
        received = await within(_until_synced(talk.events(), times=1))
    [lost] = [event for event in received if isinstance(event, Lost)]
    assert 0 <= lost.seconds <= 0.04


INVALID = {
    "no JSON": "{",
    "no UTF-8": b"\xff",
    "too deep": "[" * 100_000,
    "a number of 5,000 digits": "9" * 5_000,
    "a session without fields": {"type": "session"},
    "a session whose running turn is 5": {**SESSION, "last_seq": 9, "running": 5},
    "a message without fields": {"type": "message"},
    "a message without a number": {"type": "message", "seq": "x", "revision": 1},
    "text of a turn that is a list": {"type": "snapshot", "turn": [], "step": 0, "text": "x"},
    "text that is a number": {"type": "snapshot", "turn": "t", "step": 0, "text": 5},
    "an event that is a number": {"type": "delta", "turn": "t", "step": 0, "event": 5},
}


@pytest.mark.parametrize("frame", INVALID.values(), ids=INVALID)
async def test_an_invalid_frame_is_a_lost_connection(frame):
    async def invalid(server: ScriptedServer, socket: Any) -> None:
        await server.welcome(socket)
        await socket.send(json.dumps(frame) if isinstance(frame, dict) else frame)
        await socket.wait_closed()

    async with scripted(invalid, until_closed) as (server, url), connect(url, proxy=None) as talk:
        received = await within(_until_synced(talk.events(), times=1))
        [lost] = [event for event in received if isinstance(event, Lost)]
        assert (lost.code, lost.reason) == (1007, "the server sent an invalid frame")
        assert talk.session["running"] is None
    assert server.frames[1] == {"type": "hello", "v": 1}


@pytest.mark.parametrize(
    "bye", [{}, {"code": "x", "reason": []}, {"code": 4503, "reconnect": True, "after_ms": "soon"}]
)
async def test_an_invalid_bye_is_ignored(bye):
    async def leaving(server: ScriptedServer, socket: Any) -> None:
        await server.welcome(socket)
        await server.send(socket, {"type": "bye", **bye})
        await socket.close(4503, "closed")

    async with scripted(leaving, until_closed) as (_, url), connect(url, proxy=None) as talk:
        received = await within(_until_synced(talk.events(), times=1))
    assert [(e.code, e.reason) for e in received if isinstance(e, Lost)] == [(4503, "closed")]


async def test_older_unknown_and_removed_frames_change_nothing():
    async def confused(server: ScriptedServer, socket: Any) -> None:
        await server.receive(socket)
        session = {**SESSION, "first_seq": 2, "last_seq": 3, "revision": 5, "running": None}
        await server.send(
            socket,
            row(1, "removed"),
            row(2, "new", revision=4),
            row(2, "old", revision=3),
            row(3, "other"),
            session,
            row(1, "removed"),
            {**session, "first_seq": 1, "revision": 4, "title": "old"},
            {"type": "delta", "turn": "t", "step": 0, "text": "x"},
            {"type": "unknown"},
            {"type": "error", "code": "unavailable"},
            {"type": "synced", "cursor": "c"},
        )
        await socket.wait_closed()

    async with scripted(confused) as (_, url), connect(url, proxy=None) as talk:
        assert [row.text for row in talk.messages] == ["new", "other"]
        assert talk.session["revision"] == 5
        assert "title" not in talk.session


async def test_a_change_of_a_row_that_is_not_loaded_is_ignored():
    async def changing(server: ScriptedServer, socket: Any) -> None:
        await server.receive(socket)
        session = {**SESSION, "last_seq": 6, "revision": 5, "running": None}
        rows = [row(5, "five"), row(6, "six"), row(3, "changed", revision=4)]
        await server.send(socket, *rows, row(5, "5", revision=4), session, WELCOME[2])
        await socket.wait_closed()

    async with scripted(changing) as (_, url), connect(url, proxy=None) as talk:
        assert [row.text for row in talk.messages] == ["5", "six"]


async def test_messages_are_without_superseded_rows():
    async def replacing(server: ScriptedServer, socket: Any) -> None:
        await server.receive(socket)
        session = {**SESSION, "last_seq": 4, "running": None, "superseded": [[1, 2]]}
        rows = [row(n, str(n)) for n in range(1, 5)]
        await server.send(socket, *rows, session, WELCOME[2])
        await socket.wait_closed()

    async with scripted(replacing) as (_, url), connect(url, proxy=None) as talk:
        assert [row.text for row in talk.messages] == ["3", "4"]
        assert len(talk.rows) == 4


async def test_a_stored_row_ends_its_stream():
    async def streaming(server: ScriptedServer, socket: Any) -> None:
        await server.receive(socket)
        running = {"turn": "t", "status": "running", "since": None}
        text = {"type": "delta", "turn": "t", "step": 0, "text": "So "}
        session = {**SESSION, "last_seq": 1, "running": running}
        await server.send(socket, session, text, {**text, "text": "far"}, WELCOME[2])
        await server.receive(socket)
        await server.send(socket, row(2, "So far.", step=0), {**text, "text": "late"})
        await server.send(socket, {"type": "ok", "id": 1, "messages": []})
        await socket.wait_closed()

    async with scripted(streaming) as (_, url), connect(url, proxy=None) as talk:
        assert talk.texts == {("t", 0): "So far"}
        await within(talk.fetch())
        assert talk.texts == {}


async def test_each_connection_has_a_new_ticket():
    tickets = iter(["a-b", "c"])

    async def ticket() -> str:
        return str(next(tickets))

    async with (
        scripted(welcome_and_abort, until_closed) as (server, url),
        connect(f"{url}?x=1", ticket=ticket, proxy=None) as talk,
    ):
        await within(_until_synced(talk.events(), times=1))
    protocols = [request.headers["Sec-WebSocket-Protocol"] for request in server.requests]
    assert protocols == ["chatmemory.v1, ticket.a-b", "chatmemory.v1, ticket.c"]
    assert {request.path for request in server.requests} == {"/ws/chat/talk/?x=1"}
    assert not any("Origin" in request.headers for request in server.requests)


async def test_a_request_for_a_ticket_is_retried_after_an_error():
    given = []

    async def ticket() -> str:
        given.append("ticket")
        if len(given) == 2:
            raise ConnectionRefusedError
        return "a"

    async with (
        scripted(welcome_and_abort, until_closed) as (server, url),
        connect(url, ticket=ticket, proxy=None) as talk,
    ):
        await within(_until_synced(talk.events(), times=1))
    assert (len(given), len(server.requests)) == (3, 2)


async def test_a_turn_that_was_cancelled_before_a_frame_named_it_has_no_reply(monkeypatch):
    monkeypatch.setattr(client, "STATUS_POLL_SECONDS", 0.05)

    async def cancelling(server: ScriptedServer, socket: Any) -> None:
        await server.welcome(socket)
        for status in ("waiting", "cancelled"):
            frame = await server.receive(socket)
            ok = {"type": "ok", "id": frame["id"], "turn": frame["client_id"], "status": status}
            await server.send(socket, {**ok, "seq": None, "duplicate": status == "cancelled"})
        await socket.wait_closed()

    async with scripted(cancelling) as (server, url), connect(url, proxy=None) as talk:
        with pytest.raises(NoReply):
            await within(talk.ask("hi"))
    first, again = server.frames[1:]
    assert first["client_id"] == again["client_id"]


async def test_a_refusal_has_all_fields_of_the_error_frame():
    async def busy(server: ScriptedServer, socket: Any) -> None:
        await server.welcome(socket)
        frame = await server.receive(socket)
        error = {"type": "error", "id": frame["id"], "code": "busy", "message": "Wait."}
        more = {"retry": True, "retry_after_ms": 1_500, "turn": "t1", "field": "text", "limit": 3}
        await server.send(socket, {**error, **more})
        await socket.wait_closed()

    async with scripted(busy) as (server, url), connect(url, proxy=None) as talk:
        with pytest.raises(Refused, match="busy: Wait") as refused:
            await within(talk.send("hi", if_busy="reject", expect_seq=7))
    error = refused.value
    assert (error.retry, error.retry_after, error.turn) == (True, 1.5, "t1")
    assert (error.field, error.limit) == ("text", 3)
    assert error.client_id == server.frames[-1]["client_id"]
    assert (server.frames[-1]["if_busy"], server.frames[-1]["expect_seq"]) == ("reject", 7)


async def test_the_documented_examples_work(ann, capsys):
    page = (django_settings.BASE_DIR / "docs/howto/client.md").read_text()
    functions: dict[str, Any] = {}
    for example in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(compile(example, "docs/howto/client.md", "exec"), functions)  # noqa: S102  # our own page
    cookies = {django_settings.SESSION_COOKIE_NAME: ann.cookie}
    async with serving() as address:
        url = f"{address}/ws/chat/talk/"
        assert await within(functions["order_status"](url, cookies)) == "Where is my order? "
        assert (await within(functions["watch"](url, cookies))).text == "Tell me a story "
        async with chat(address, ann) as talk:
            assert (await within(functions["patient"](talk, "hi"))).text == "hi "


@pytest.mark.slow
def test_the_client_imports_no_django():
    code = "import sys, chatmemory.client; print(*sys.modules)"
    process = subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", code],
        cwd=django_settings.BASE_DIR,
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"django", "channels"} & {name.partition(".")[0] for name in process.stdout.split()}


def test_a_message_has_its_steps():
    call = {"id": "c1", "name": "weather", "args": "{}", "cut": False}
    reply = Message({"calls": [call], "reasoning": {"text": "Hm.", "cut": False}})
    assert (reply.calls, reply.result, reply.reasoning) == ([call], None, "Hm.")
    result = {"call": "c1", "name": "weather", "failed": False}
    assert Message({"result": result}).result == result
    assert (Message({}).calls, Message({}).reasoning) == ([], "")
