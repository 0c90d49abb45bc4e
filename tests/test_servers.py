"""The chat on real servers: Daphne and Uvicorn, two processes, one killed, and Redis gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
import uuid
from functools import cache, partial
from http.client import HTTPResponse
from pathlib import Path

import pytest
import websockets
from asgiref.sync import sync_to_async as db
from django.conf import settings
from django.test import AsyncClient, Client

from chatmemory import services
from chatmemory.models import DatabaseNow, Message, Turn
from tests.conftest import database_environment, missing
from tests.factories import make_session
from tests.rest import request
from tests.servers import (
    DEADLINE,
    Closed,
    Connection,
    answers,
    eventually,
    free_port,
    greeted,
    serving,
    sign_in,
    started,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def ann(transactional_db):
    person = sign_in()
    make_session(owner=person.user)
    return person


@pytest.fixture
def serve(transactional_db, tmp_path):
    """Start servers for this test, which may kill them."""
    with started(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def kept(django_db_setup, tmp_path_factory):
    """The servers with these options, which other tests use too."""
    with started(tmp_path_factory.mktemp("servers")) as start:
        yield cache(start)


@pytest.fixture
def own_redis(tmp_path):
    """The URL of a Redis of this test's own, and what kills it."""
    program = shutil.which("redis-server") or missing("redis-server is not installed")
    port = free_port()
    process = subprocess.Popen(  # noqa: S603  # our own command line
        [program, "--port", str(port), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: answers(port), "redis-server does not start")

    def kill() -> None:
        process.kill()
        process.wait()

    yield f"redis://127.0.0.1:{port}/0", kill
    kill()


@db
def rows():
    return list(Message.objects.in_order().values_list("role", "text", "status"))


@db
def replies():
    found = Message.objects.filter(role="assistant").order_by("session", "seq")
    return list(found.values_list("text", "status"))


@pytest.mark.parametrize("program", ["daphne", "uvicorn"])
async def test_a_chat_works_on_each_server(ann, kept, program):
    [server] = await db(kept)(program=program)
    async with greeted(tab := Connection(server, ann)):
        await tab.send("good morning")
        await tab.idle(2)
        await tab.send("count 100", "c2")
        await tab.until("snapshot", turn="c2")
        await tab.ask("stop", turn="c2")
        await tab.idle(4)
    assert (await rows())[1] == ("assistant", "good morning", "complete")
    assert (await rows())[3][2] == "interrupted"


@pytest.mark.parametrize("program", ["daphne", "uvicorn"])
async def test_each_server_tells_why_it_closes(ann, kept, program):
    [server] = await db(kept)(program=program)
    async with Connection(server, ann, "nope") as tab:
        await tab.say("hello", v=1)
        bye, code = await tab.closed()
        assert (bye["reason"], code) == ("not_found", 4404)
    async with Connection(server, None) as tab:
        assert (await tab.closed())[1] == 4401
    ticket = await db(services.issue_ticket)(by=ann.talk["by"])
    protocols = ["chatmemory.v1", f"ticket.{ticket}"]
    async with greeted(tab := Connection(server, None, protocols=protocols)):
        assert tab.socket.subprotocol == "chatmemory.v1"
    async with Connection(server, ann, protocols=protocols) as tab:
        assert (await tab.closed())[1] == 4401
    async with greeted(tab := Connection(server, ann)):
        await tab.put("x" * 300 * 1024)
        bye, code = await tab.closed()
        # Daphne's library refuses to say 1009 by itself.
        assert (bye["code"], code) == (1009, 1000 if program == "daphne" else 1009)
    for origin in (None, "null", "http://evil.example", f"http://127.0.0.1:{server.port + 1}"):
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(
                f"ws://127.0.0.1:{server.port}/ws/chat/talk/",
                additional_headers=({"Origin": origin} if origin else {}),
                proxy=None,
            )
        assert refused.value.response.status_code == 403


def _masked(opcode: int, payload: bytes) -> bytes:
    """A frame as a client sends it, with a mask of zeros."""
    return bytes([0x80 | opcode, 0x80 | len(payload), 0, 0, 0, 0]) + payload


BROKEN = {
    "invalid UTF-8": _masked(1, b"\xff\xfe"),
    "unmasked": b"\x81\x02hi",
    "reserved opcode": _masked(3, b"hi"),
    "126-byte ping": bytes([0x89, 0xFE, 0, 126, 0, 0, 0, 0]) + b"x" * 126,
}


@pytest.mark.parametrize("program", ["daphne", "uvicorn"])
async def test_what_breaks_the_rules_of_websockets_ends_that_socket_alone(ann, kept, program):
    [server] = await db(kept)(program=program)
    async with greeted(other := Connection(server, ann)):
        for data in BROKEN.values():
            async with Connection(server, ann) as tab:
                tab.socket.transport.write(data)
                assert (await tab.closed())[1] in (1002, 1006, 1007)
        async with greeted(tab := Connection(server, ann)):
            await tab.put(json.dumps({"type": "x" * 2 * 1024 * 1024}))
            assert (await tab.closed())[1] in (1006, 1009)
        await other.send("hi")
        await other.idle(2)
    assert [text for _, text, _ in await rows()] == ["hi", "hi"]


@pytest.mark.parametrize("program", ["daphne", "uvicorn"])
async def test_a_frame_that_inflates_to_64_mib_closes_its_socket_and_memory_stays_flat(
    ann, kept, program
):
    [server] = await db(kept)(program=program)
    growth = growth_of(server)
    async with Connection(server, ann) as tab:
        assert bool(tab.socket.protocol.extensions) == (program == "uvicorn")
        with contextlib.suppress(websockets.ConnectionClosed):
            await tab.socket.send("0" * 64 * 1024 * 1024)
        assert (await tab.closed())[1] in (1006, 1009)
    assert growth() < 32


@pytest.mark.parametrize("program", ["daphne", "uvicorn"])
async def test_fragments_that_never_end_close_their_socket_and_memory_stays_flat(
    ann, kept, program
):
    [server] = await db(kept)(program=program)
    growth = growth_of(server)
    async with Connection(server, ann) as small, Connection(server, ann) as large:
        await send_fragments(small, size=1)
        await send_fragments(large, size=2_048)
        assert (await large.closed())[1] in (1006, 1009)
        bye, code = await small.closed()  # its message reaches no limit, and its hello is missing
        assert (bye["reason"], code) == ("no_hello", 4408)
    assert growth() < 32


async def send_fragments(tab, *, size):
    """Send 10,000 fragments of one message, none of which is the last."""
    length = struct.pack("!BH", 0x80 | 126, size) if size > 125 else bytes([0x80 | size])
    for number in range(10_000):
        opcode = bytes([0 if number else 1])
        tab.socket.transport.write(opcode + length + bytes(4) + b"0" * size)
        if number % 100 == 0:
            await asyncio.sleep(0)
        if tab.socket.transport.is_closing():
            break


def growth_of(server):
    """What tells by how many MiB the memory of a server's process grew at most, from now on."""
    process = Path(f"/proc/{server.process.pid}")
    (process / "clear_refs").write_text("5")  # the peak begins anew

    def peak() -> int:
        [kilobytes] = re.findall(r"VmHWM:\s+(\d+)", (process / "status").read_text())
        return int(kilobytes) // 1024

    before = peak()
    return lambda: peak() - before


@pytest.mark.regression
@pytest.mark.parametrize(
    ("program", "byte", "status"),
    [
        ("daphne", b"\x0b", b"400"),
        ("daphne", b"\x85", b"400"),
        ("uvicorn", b"\x0b", b"400"),
        # A value may contain it (RFC 9110, 5.5: obs-text); it must only end no line.
        ("uvicorn", b"\x85", b"101"),
    ],
)
async def test_no_control_byte_in_a_header_ends_its_line(ann, kept, program, byte, status):
    [server] = await db(kept)(program=program)
    origin = b"Origin: " + server.address.encode()
    # With an origin of its own the upgrade is refused for the byte alone.
    answer = await db(upgraded)(server, ann, b"X-Any: 1" + byte + b"X-Other: 2", origin)
    assert answer.split()[1] == status
    # Without one, an origin behind the byte must not be found.
    answer = await db(upgraded)(server, ann, b"X-Any: 1" + byte + origin)
    assert answer.split()[1] == (b"403" if status == b"101" else status)


def upgraded(server, person, *headers):
    """The answer to a handshake with these headers, which name the origin or not."""
    lines = [
        b"GET /ws/chat/talk/ HTTP/1.1",
        b"Host: 127.0.0.1:%d" % server.port,
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Cookie: sessionid=" + person.cookie.encode(),
        *headers,
    ]
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE) as line:
        line.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
        return line.recv(4_096)


def begin_post(line, server, person, *headers, body):
    """Send the head of a message's POST with these headers, and this much of its body."""
    token = b"a" * 32
    head = [
        b"POST /api/sessions/talk/messages/ HTTP/1.1",
        b"Host: 127.0.0.1:%d" % server.port,
        b"Content-Type: application/json",
        b"Cookie: sessionid=%s; csrftoken=%s" % (person.cookie.encode(), token),
        b"X-CSRFToken: " + token,
        *headers,
    ]
    line.sendall(b"\r\n".join(head) + b"\r\n\r\n" + body)


def answer_of(line):
    """The status and the JSON of the answer that comes next on this connection."""
    answer = HTTPResponse(line)
    answer.begin()
    return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("program", ["daphne", "uvicorn"])
def test_a_server_answers_a_body_of_another_size_in_json_and_memory_stays_flat(ann, kept, program):
    [server] = kept(program=program)
    growth = growth_of(server)
    connect = partial(socket.create_connection, ("127.0.0.1", server.port), timeout=DEADLINE)
    with connect() as line:
        begin_post(line, server, ann, b"Content-Length: 3000000", body=b"x" * 3_000_000)
        status, problem = answer_of(line)
        assert (status, problem["code"], problem["limit"]) == (413, "too_large", 256 * 1024)
    with connect() as line:
        body = b'{"client_id": "c1", "text": "hi"}'
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        begin_post(line, server, ann, b"Transfer-Encoding: chunked", body=chunks)
        status, turn = answer_of(line)
        assert (status, turn["turn"]) == (202, "c1")
    with connect() as line:
        begin_post(line, server, ann, b"Content-Length: 10", body=b"x" * 1024)
        status, problem = answer_of(line)
        assert (status, problem["code"]) == (400, "bad_json")
        with contextlib.suppress(OSError):
            for _ in range(64):
                line.sendall(b"x" * 1024 * 1024)
    assert growth() < 32


@pytest.mark.redis
async def test_two_tabs_on_two_processes_live_together(ann, kept, redis_url):
    here, there = await db(kept)(2, redis_url=redis_url)
    async with greeted(a := Connection(here, ann), b := Connection(there, ann)):
        await a.send("count 10")
        await b.until("snapshot", turn="c1")
        await b.until("delta", turn="c1")
        await b.idle(2)
        await b.send("from b", "c2")
        await a.idle(4)
        await b.idle(4)
    counted = "".join(f"{n} " for n in range(1, 11))
    for tab in (a, b):
        assert tab.texts() == ["count 10", counted, "from b", "from b"]
        assert counted.startswith(tab.streamed()) or tab.streamed() == "from b"


@pytest.mark.redis
async def test_closing_the_tab_ends_nothing_and_the_other_process_shows_it_live(
    ann, kept, redis_url
):
    here, there = await db(kept)(2, redis_url=redis_url)
    async with greeted(tab := Connection(here, ann)):
        await tab.send("count 20")
        await tab.until("delta")
    async with greeted(tab := Connection(there, ann)):
        assert (await tab.until("snapshot"))["text"].startswith("1 2 ")
        await tab.until("delta")
        await tab.idle(2)
    assert tab.texts()[-1] == "".join(f"{n} " for n in range(1, 21))


@pytest.mark.redis
async def test_a_stop_is_heard_by_the_process_that_runs_the_turn(ann, kept, redis_url):
    here, there = await db(kept)(2, redis_url=redis_url)
    async with greeted(a := Connection(here, ann), b := Connection(there, ann)):
        await a.send("count 300")
        await b.until("snapshot")
        await b.ask("stop", turn="c1")
        await b.idle(2)
    assert (await rows())[1][2] == "interrupted"


async def test_a_reply_whose_server_is_killed_ends_with_what_was_kept(ann, serve):
    [server] = await db(serve)(LEASE=1)
    async with greeted(tab := Connection(server, ann)):
        await tab.send("count 300")
        await eventually(lambda: Turn.objects.get().partial)
        await db(server.kill)()
        with pytest.raises((Closed, OSError)):
            await tab.idle(2)
    await db(server.start)()
    async with greeted(tab := Connection(server, ann)):
        if tab.frames[-2]["running"]:
            await tab.idle(2)
        assert (await tab.send("good morning", "c2"))["type"] == "ok"
        await tab.idle(4)
    _, reply, _, _ = await rows()
    assert reply[2] == "interrupted"
    assert reply[1].startswith("1 2 3 ")
    assert "300" not in reply[1]


@pytest.mark.parametrize("program", ["daphne", "uvicorn"])
async def test_a_server_that_is_told_to_end_ends_its_turns_and_sends_its_sockets_away(
    ann, serve, program
):
    await db(make_session)("other", owner=ann.user)
    [server] = await db(serve)(program=program, DRAIN=1)
    async with greeted(a := Connection(server, ann), b := Connection(server, ann, "other")):
        await a.send("count 4")
        await b.send("count 300")
        await a.until("snapshot")
        await b.until("snapshot")
        ending = asyncio.ensure_future(db(server.terminate, thread_sensitive=False)())
        for tab in (a, b):
            bye, code = await tab.closed()
            assert (bye["code"], bye["reason"], bye["reconnect"]) == (4503, "shutting_down", True)
            assert (code, 0 <= bye["after_ms"] < 1000) == (4503, True)
        assert await ending in (0, -signal.SIGTERM)
    finished, (kept, status) = await replies()
    assert finished == ("1 2 3 4 ", "complete")
    assert kept.startswith("1 2 3 4 ")
    assert (status, await Turn.objects.filter(ended_at=None).acount()) == ("interrupted", 0)


def posted(server, person, text):
    """Send a message over REST; return the status."""
    token = "a" * 32
    request = urllib.request.Request(  # noqa: S310  # our own address
        f"{server.address}/api/sessions/talk/messages/",
        json.dumps({"client_id": "c1", "text": text}).encode(),
        {
            "Content-Type": "application/json",
            "Cookie": f"sessionid={person.cookie}; csrftoken={token}",
            "X-CSRFToken": token,
        },
    )
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:  # noqa: S310
        return answer.status


@pytest.mark.parametrize("program", ["daphne", "uvicorn"])
async def test_a_server_that_never_had_a_socket_ends_its_turns_in_order_too(ann, serve, program):
    [server] = await db(serve)(program=program, DRAIN=0)
    assert await db(posted)(server, ann, "count 300") == 202
    await eventually(lambda: Turn.objects.get().partial)
    assert await db(server.terminate)() in (0, -signal.SIGTERM)
    [(kept, status)] = await replies()
    assert kept.startswith("1 2 ")
    assert status == "interrupted"


@pytest.mark.parametrize("program", ["daphne", "uvicorn"])
async def test_a_thread_in_which_a_responder_hangs_keeps_no_server_from_its_end(
    ann, serve, program
):
    [server] = await db(serve)(program=program, DRAIN=0)
    async with greeted(tab := Connection(server, ann)):
        await tab.send("hang")
        await tab.until("snapshot")
        assert await db(server.terminate)() in (0, -signal.SIGTERM)
    assert await replies() == [("So far, ", "interrupted")]


async def test_a_dead_servers_turn_is_ended_by_another_that_merely_runs(ann, serve):
    dying, living = await db(serve)(2, LEASE=1)
    async with greeted(tab := Connection(dying, ann)):
        await tab.send("count 300")
        await eventually(lambda: Turn.objects.get().partial)
        await db(dying.kill)()
        with pytest.raises((Closed, OSError)):
            await tab.idle(2)
    async with greeted(Connection(living, ann)):
        await eventually(lambda: Turn.objects.get().status == "interrupted")


async def test_without_redis_sockets_connect_and_turns_end(ann, serve, own_redis):
    url, kill = own_redis
    [server] = await db(serve)(redis_url=url)
    async with greeted(tab := Connection(server, ann)):
        await tab.send("count 20")
        await tab.until("snapshot")
        await db(kill)()
        async with greeted(late := Connection(server, ann)):
            await late.until("snapshot")
            await tab.idle(2)
            await late.idle(2)
        await tab.send("good morning", "c2")
        await tab.idle(4)
    [cold] = await db(serve)(redis_url=url)
    async with greeted(tab := Connection(cold, ann)):
        await tab.send("good evening", "c3")
        await tab.idle(6)


async def test_without_redis_other_processes_catch_up_by_their_sweep(ann, serve, own_redis):
    url, kill = own_redis
    here, there = await db(serve)(2, redis_url=url)
    async with greeted(a := Connection(here, ann), b := Connection(there, ann)):
        await db(kill)()
        await a.send("good morning")
        await b.idle(2)
    assert b.texts() == ["good morning", "good morning"]


async def test_a_new_session_is_made_and_nobody_else_can_reach_it(ann, kept):
    [server] = await db(kept)(program="uvicorn")
    key = str(uuid.uuid4())
    async with Connection(server, ann, key) as tab:
        await tab.hello(create=True)
    async with Connection(server, await db(sign_in)(), key) as tab:
        await tab.say("hello", v=1, create=True)
        await tab.until("synced")
        assert tab.texts() == []
    assert await db(services.sessions_of(ann.talk["by"]).filter(key=key).count)() == 1


@pytest.mark.regression
@pytest.mark.parametrize(
    ("program", "path"),
    [("uvicorn", "/api/sessions/"), ("daphne", "/chat/"), ("uvicorn", "/admin/login/")],
)
async def test_after_a_crash_of_all_servers_a_look_ends_the_turns(ann, serve, program, path):
    claim = await db(services.admit_turn)(**ann.talk, client_id="c1", content="hi", owner="gone")
    await db(services.start_turn)(claim=claim.claim)
    await db(Turn.objects.update)(lease_until=DatabaseNow())
    [server] = serve(1, program=program)
    answer = await request(server, ann, path)
    assert answer.status == 200
    interrupted = Turn.objects.filter(status="interrupted")
    await eventually(interrupted.exists, "it runs on")


WSGI = """
import threading
from wsgiref.util import setup_testing_defaults

from django.core.wsgi import get_wsgi_application

environ = {"HTTP_HOST": "127.0.0.1"}
setup_testing_defaults(environ)
application = get_wsgi_application()
b"".join(application(environ, lambda *_: None))
print([thread.name for thread in threading.enumerate()])
"""


def test_a_wsgi_server_does_not_sweep():
    done = subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", WSGI],
        cwd=settings.BASE_DIR,
        env=database_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['MainThread']"


async def test_the_requests_of_tests_start_no_sweep(ann):
    await AsyncClient().get("/chat/")
    await db(Client().get)("/chat/")
    async with serving() as address:
        await asyncio.to_thread(urllib.request.urlopen, f"{address}/admin/login/")
    assert "chatmemory-hub" not in {thread.name for thread in threading.enumerate()}
