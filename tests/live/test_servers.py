"""The chat on real servers: several programs and processes, kills, and no Redis."""

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
from chatmemory.live.hub import RECONNECT_MS_PER_SOCKET
from chatmemory.models import DatabaseNow, Message, Turn
from chatmemory.services.turns import progress
from tests.conftest import database_environment, missing
from tests.factories import make_session
from tests.rest import request
from tests.servers import (
    DEADLINE,
    Closed,
    Connection,
    connected,
    eventually,
    free_port,
    is_listening,
    on_daphne_and_uvicorn,
    person_with_talk,
    serving,
    sign_in,
    start_servers,
    started,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


ann = person_with_talk
serve = start_servers


@pytest.fixture(scope="module")
def shared(django_db_setup, tmp_path_factory):
    """Start servers that the tests of this module share, one set for each options."""
    with started(tmp_path_factory.mktemp("servers")) as start:
        yield cache(start)


@pytest.fixture
def own_redis(tmp_path):
    """The URL of a Redis only for this test, and a function that kills it."""
    program = shutil.which("redis-server") or missing("redis-server is not installed")
    port = free_port()
    process = subprocess.Popen(  # noqa: S603  # our own command line
        [program, "--port", str(port), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: is_listening(port), "redis-server does not start")

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


@on_daphne_and_uvicorn
async def test_a_chat_works_on_each_server(ann, shared, program):
    [server] = await db(shared)(program=program)
    async with connected(tab := Connection(server, ann)):
        await tab.send("good morning")
        await tab.idle(2)
        await tab.send("count 100", "c2")
        await tab.until("snapshot", turn="c2")
        await tab.ask("stop", turn="c2")
        await tab.idle(4)
    assert (await rows())[1] == ("assistant", "good morning", "complete")
    assert (await rows())[3][2] == "interrupted"


@on_daphne_and_uvicorn
async def test_each_server_sends_the_reason_of_a_close(ann, shared, program):
    [server] = await db(shared)(program=program)
    async with Connection(server, ann, "nope") as tab:
        await tab.send_frame("hello", v=1)
        bye, code = await tab.closed()
        assert (bye["reason"], code) == ("not_found", 4404)
    async with Connection(server, None) as tab:
        assert (await tab.closed())[1] == 4401
    ticket = await db(services.issue_ticket)(by=ann.talk["by"])
    protocols = ["chatmemory.v1", f"ticket.{ticket}"]
    async with connected(tab := Connection(server, None, protocols=protocols)):
        assert tab.socket.subprotocol == "chatmemory.v1"
    async with Connection(server, ann, protocols=protocols) as tab:
        assert (await tab.closed())[1] == 4401
    async with connected(tab := Connection(server, ann)):
        await tab.put("x" * 300 * 1024)
        bye, code = await tab.closed()
        # Daphne's library refuses to send the code 1009.
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


@on_daphne_and_uvicorn
async def test_a_violation_of_the_websocket_protocol_closes_only_that_socket(ann, shared, program):
    [server] = await db(shared)(program=program)
    async with connected(other := Connection(server, ann)):
        for data in BROKEN.values():
            async with Connection(server, ann) as tab:
                tab.socket.transport.write(data)
                assert (await tab.closed())[1] in (1002, 1006, 1007)
        async with connected(tab := Connection(server, ann)):
            # The server may close before it has read all.
            with contextlib.suppress(websockets.ConnectionClosed):
                await tab.put(json.dumps({"type": "x" * 2 * 1024 * 1024}))
            assert (await tab.closed())[1] in (1006, 1009)
        await other.send("hi")
        await other.idle(2)
    assert [text for _, text, _ in await rows()] == ["hi", "hi"]


@pytest.mark.long
@on_daphne_and_uvicorn
async def test_a_frame_that_inflates_to_64_mib_closes_its_socket_and_memory_stays_flat(
    ann, shared, program
):
    [server] = await db(shared)(program=program)
    growth = growth_of(server)
    async with Connection(server, ann) as tab:
        assert bool(tab.socket.protocol.extensions) == (program == "uvicorn")
        with contextlib.suppress(websockets.ConnectionClosed):
            await tab.socket.send("0" * 64 * 1024 * 1024)
        assert (await tab.closed())[1] in (1006, 1009)
    assert growth() < 32


@pytest.mark.long
@on_daphne_and_uvicorn
async def test_fragments_that_never_end_close_their_socket_and_memory_stays_flat(
    ann, shared, program
):
    [server] = await db(shared)(program=program)
    growth = growth_of(server)
    async with Connection(server, ann) as small, Connection(server, ann) as large:
        await send_fragments(small, size=1)
        await send_fragments(large, size=2_048)
        assert (await large.closed())[1] in (1006, 1009)
        bye, code = await small.closed()  # its message is below all limits, but it sent no hello
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
    """Return a function that returns how many MiB the server's memory grew at most since now."""
    process = Path(f"/proc/{server.process.pid}")
    (process / "clear_refs").write_text("5")  # resets the peak

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
        # A value may contain it (RFC 9110, 5.5: obs-text), but it must not end the line.
        ("uvicorn", b"\x85", b"101"),
    ],
)
async def test_no_control_byte_in_a_header_ends_its_line(ann, shared, program, byte, status):
    [server] = await db(shared)(program=program)
    origin = b"Origin: " + server.address.encode()
    # With a valid origin, the upgrade is refused only because of the byte.
    answer = await db(upgraded)(server, ann, b"X-Any: 1" + byte + b"X-Other: 2", origin)
    assert answer.split()[1] == status
    # Without one, the server must not find an origin after the byte.
    answer = await db(upgraded)(server, ann, b"X-Any: 1" + byte + origin)
    assert answer.split()[1] == (b"403" if status == b"101" else status)


def upgraded(server, person, *headers):
    """Send a handshake with these headers; return the answer."""
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
    """Send the head of a POST of a message with these headers, and a part of its body."""
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
    """Read the next answer of this connection; return its status and its JSON."""
    answer = HTTPResponse(line)
    answer.begin()
    return answer.status, json.loads(answer.read())


@on_daphne_and_uvicorn
def test_a_server_answers_a_body_of_another_size_in_json_and_memory_stays_flat(
    ann, shared, program
):
    [server] = shared(program=program)
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
async def test_two_tabs_on_two_processes_see_the_same_session(ann, shared, redis_url):
    here, there = await db(shared)(2, redis_url=redis_url)
    async with connected(a := Connection(here, ann), b := Connection(there, ann)):
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


@pytest.mark.long
@pytest.mark.redis
async def test_a_reply_continues_after_its_tab_closes_and_is_streamed_by_another_process(
    ann, shared, redis_url
):
    here, there = await db(shared)(2, redis_url=redis_url)
    async with connected(tab := Connection(here, ann)):
        await tab.send("count 20")
        await tab.until("delta")
    async with connected(tab := Connection(there, ann)):
        assert (await tab.until("snapshot"))["text"].startswith("1 2 ")
        await tab.until("delta")
        await tab.idle(2)
    assert tab.texts()[-1] == "".join(f"{n} " for n in range(1, 21))


@pytest.mark.redis
async def test_a_stop_reaches_the_process_that_runs_the_turn(ann, shared, redis_url):
    here, there = await db(shared)(2, redis_url=redis_url)
    async with connected(a := Connection(here, ann), b := Connection(there, ann)):
        await a.send("count 300")
        await b.until("snapshot")
        await b.ask("stop", turn="c1")
        await b.idle(2)
    assert (await rows())[1][2] == "interrupted"


@pytest.mark.long
async def test_a_reply_whose_server_is_killed_ends_with_the_saved_text(ann, serve):
    [server] = await db(serve)(LEASE=3)
    async with connected(tab := Connection(server, ann)):
        await tab.send("count 300")
        await eventually(lambda: Turn.objects.get().partial)
        await db(server.kill)()
        with pytest.raises((Closed, OSError)):
            await tab.idle(2)
    await db(server.start)()
    async with connected(tab := Connection(server, ann)):
        if tab.frames[-2]["running"]:
            await tab.idle(2)
        assert (await tab.send("good morning", "c2"))["type"] == "ok"
        await tab.idle(4)
    _, reply, _, _ = await rows()
    assert reply[2] == "interrupted"
    assert reply[1].startswith("1 2 3 ")
    assert "300" not in reply[1]


@pytest.mark.long
@on_daphne_and_uvicorn
async def test_a_terminated_server_ends_its_turns_and_closes_its_sockets(ann, serve, program):
    await db(make_session)("other", owner=ann.user)
    [server] = await db(serve)(program=program, DRAIN=1)
    async with connected(a := Connection(server, ann), b := Connection(server, ann, "other")):
        await a.send("count 4")
        await b.send("count 300")
        await a.until("snapshot")
        await b.until("snapshot")
        ending = asyncio.ensure_future(db(server.terminate, thread_sensitive=False)())
        for tab in (a, b):
            bye, code = await tab.closed()
            assert (bye["code"], bye["reason"], bye["reconnect"]) == (4503, "shutting_down", True)
            assert (code, 0 <= bye["after_ms"] < 2 * RECONNECT_MS_PER_SOCKET) == (4503, True)
        assert await ending in (0, -signal.SIGTERM)
    finished, (shared, status) = await replies()
    assert finished == ("1 2 3 4 ", "complete")
    assert shared.startswith("1 2 3 4 ")
    assert (status, await Turn.objects.filter(ended_at=None).acount()) == ("interrupted", 0)


def posted(server, person, text):
    """Send a message over REST; return the status."""
    token = "a" * 32
    request = urllib.request.Request(  # noqa: S310  # a local address
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


@pytest.mark.long
@on_daphne_and_uvicorn
async def test_a_terminated_server_without_sockets_ends_its_turns(ann, serve, program):
    [server] = await db(serve)(program=program, DRAIN=0)
    assert await db(posted)(server, ann, "count 300") == 202
    await eventually(lambda: Turn.objects.get().partial)
    assert await db(server.terminate)() in (0, -signal.SIGTERM)
    [(shared, status)] = await replies()
    assert shared.startswith("1 2 ")
    assert status == "interrupted"


@pytest.mark.long
@on_daphne_and_uvicorn
async def test_a_responder_that_hangs_in_a_thread_does_not_prevent_the_end_of_the_server(
    ann, serve, program
):
    [server] = await db(serve)(program=program, DRAIN=0)
    async with connected(tab := Connection(server, ann)):
        await tab.send("hang")
        await tab.until("snapshot")
        assert await db(server.terminate)() in (0, -signal.SIGTERM)
    assert await replies() == [("So far, ", "interrupted")]


@pytest.mark.long
async def test_an_idle_server_ends_the_turn_of_a_dead_one(ann, serve):
    dying, living = await db(serve)(2, LEASE=3)
    async with connected(tab := Connection(dying, ann)):
        await tab.send("count 300")
        await eventually(lambda: Turn.objects.get().partial)
        await db(dying.kill)()
        with pytest.raises((Closed, OSError)):
            await tab.idle(2)
    async with connected(Connection(living, ann)):
        await eventually(lambda: Turn.objects.get().status == "interrupted")


@pytest.mark.long
async def test_without_redis_sockets_connect_and_turns_end(ann, serve, own_redis):
    url, kill = own_redis
    [server] = await db(serve)(redis_url=url)
    async with connected(tab := Connection(server, ann)):
        await tab.send("count 20")
        await tab.until("snapshot")
        await db(kill)()
        async with connected(late := Connection(server, ann)):
            await late.until("snapshot")
            await tab.idle(2)
            await late.idle(2)
        await tab.send("good morning", "c2")
        await tab.idle(4)
    [cold] = await db(serve)(redis_url=url)
    async with connected(tab := Connection(cold, ann)):
        await tab.send("good evening", "c3")
        await tab.idle(6)


@pytest.mark.long
async def test_without_redis_other_processes_catch_up_by_their_sweep(ann, serve, own_redis):
    url, kill = own_redis
    here, there = await db(serve)(2, redis_url=url)
    async with connected(a := Connection(here, ann), b := Connection(there, ann)):
        await db(kill)()
        await a.send("good morning")
        await b.idle(2)
    assert b.texts() == ["good morning", "good morning"]


async def test_a_new_session_is_created_and_only_its_owner_can_reach_it(ann, shared):
    [server] = await db(shared)(program="uvicorn")
    key = str(uuid.uuid4())
    async with Connection(server, ann, key) as tab:
        await tab.hello(create=True)
    async with Connection(server, await db(sign_in)(), key) as tab:
        await tab.send_frame("hello", v=1, create=True)
        await tab.until("synced")
        assert tab.texts() == []
    assert await db(services.sessions_of(ann.talk["by"]).filter(key=key).count)() == 1


@pytest.mark.long
@pytest.mark.regression
@pytest.mark.parametrize(
    ("program", "path"),
    [("uvicorn", "/api/sessions/"), ("daphne", "/chat/~all/"), ("uvicorn", "/admin/login/")],
)
async def test_after_a_crash_of_all_servers_a_page_request_ends_the_turns(
    ann, serve, program, path
):
    claim = await db(services.admit_turn)(**ann.talk, client_id="c1", content="hi", owner="gone")
    await db(progress.start_turn)(claim=claim.claim)
    await db(Turn.objects.update)(lease_until=DatabaseNow())
    [server] = serve(1, program=program)
    answer = await request(server, ann, path)
    assert answer.status == 200
    interrupted = Turn.objects.filter(status="interrupted")
    await eventually(interrupted.exists, "the turn continues")


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


@pytest.mark.long
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
