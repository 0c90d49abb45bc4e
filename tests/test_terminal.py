"""`chatmemory_chat`: a chat in a terminal and in a pipe."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command

from chatmemory import client, codec, services
from chatmemory.management.commands.chatmemory_chat import name_and_password
from chatmemory.management.signing_in import CannotSignIn, Door, _is_there, find_door
from chatmemory.management.terminal import Screen, converse, lines, shown
from tests.factories import make_session, make_user
from tests.servers import (
    DEADLINE,
    Server,
    eventually,
    free_port,
    own_threads,
    serving,
    sign_in,
    wait_for,
)

# As a program


@pytest.fixture
def site(live_database_env, settings, tmp_path) -> Iterator[Server]:
    """A server with a session `talk` of the user `mira`."""
    # One that the server knows: it has the project's settings, not those of the tests.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    make_session(owner=make_user("mira"))
    server = Server(live_database_env, tmp_path / "log")
    try:
        yield server.start()
    finally:
        server.kill()


def chat(site: Server, **options: Any) -> Any:
    command = [sys.executable, "manage.py", "chatmemory_chat"]
    return subprocess.Popen(  # noqa: S603  # our own command line
        [*command, f"{site.address}/chat/talk/", "--user", "mira"],
        cwd=django_settings.BASE_DIR,
        env={**site.env, "CHATMEMORY_PASSWORD": "secret"},
        **options,
    )


class Terminal:
    """What a person sees of the program, and what they type."""

    def __init__(self, site: Server) -> None:
        self._mine, its = pty.openpty()
        self.process = chat(site, stdin=its, stdout=its, stderr=its, start_new_session=True)
        os.close(its)
        os.set_blocking(self._mine, False)
        self._seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._mine)

    def type(self, line: str) -> None:
        os.write(self._mine, f"{line}\n".encode())

    def sees(self, pattern: str) -> None:
        """Wait until this is on the screen; what stands before it is passed over."""
        wait_for(lambda: re.search(pattern, self._read()) is not None, f"no {pattern}")
        self._seen = re.split(pattern, self._seen, maxsplit=1)[-1]

    def _read(self) -> str:
        try:
            self._seen += os.read(self._mine, 65_536).decode().replace("\r\n", "\n")
        except OSError:
            time.sleep(0.01)
        return self._seen

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ends(self) -> int:
        return int(self.process.wait(DEADLINE))


@pytest.mark.slow
def test_it_chats_in_a_pipe_and_in_a_terminal(site):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with chat(site, text=True, **pipes) as process:
        out, err = process.communicate("good morning\n\nfail", timeout=DEADLINE)
    assert (process.returncode, out, err) == (
        1,
        "good morning\nSo far, \n",
        "[failed model_error]\n",
    )
    with Terminal(site) as terminal:
        terminal.sees(r"New chat.*\n> good morning\ngood morning\n> fail\nSo far, \n\[failed")
        terminal.type("count 300")
        terminal.sees(r"1 2 3 ")
        terminal.interrupt()
        terminal.sees(r"\[interrupted\]")
        terminal.type("count 300")
        terminal.sees(r"1 2 3 ")
        site.kill()
        terminal.sees(r"connection lost")
        site.start()
        terminal.sees(r"\[connected\]")
        terminal.interrupt()
        terminal.sees(r"\[stopping")
        terminal.interrupt()
        assert terminal.ends() == 130


# In this process


@pytest.fixture
def mira(transactional_db, settings):
    settings.CHATMEMORY = {"RESPONDER": "tests.speaker.answer", "SENDS_PER_MINUTE": None}
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    with own_threads():
        user = make_user("mira")
        make_session(owner=user, title="A \x1b[2Jtitle")
        yield sign_in(user)


def door(url: str, password: str = "secret", **cookies: str) -> Door:  # noqa: S107  # of a test's user
    return find_door(url, lambda: ("mira", password), cookies)


async def test_the_way_in_is_that_of_a_browser(mira):
    enter = sync_to_async(door, thread_sensitive=False)
    async with serving() as address:
        found = await enter(f"{address}/chat/talk/")
        assert (found.url, found.create) == (f"{address}/ws/chat/talk/", False)
        fresh = await enter(f"{address}/chat/", "never asked", **found.cookies)
        assert fresh.create
        assert codec.is_new_key(fresh.url.split("/")[-2])
        async with client.connect(fresh.url, cookies=fresh.cookies, create=True, proxy=None) as new:
            assert (await new.ask("hi")).text == "hi"
        with pytest.raises(CannotSignIn, match=f"^{address}/chat/nope/: 404"):
            await enter(f"{address}/chat/nope/")
        for url, why in (
            (f"{address}/chat/talk/", "did not accept this user name and password"),
            (f"{address}/nowhere/", "Not Found"),
            (f"{address}/", "There is no chat"),
            ("ftp://example.org/", "no address of a page"),
            (f"http://127.0.0.1:{free_port()}/", "refused"),
        ):
            with pytest.raises(CannotSignIn, match=why):
                await enter(url, "wrong")


@pytest.mark.regression
async def test_a_page_whose_server_starts_is_asked_for_again(mira):
    port, asked = free_port(), asyncio.Event()
    url = f"http://127.0.0.1:{port}/chat/talk/"

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Starting\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        asked.set()

    def enter():
        return find_door(url, lambda: ("mira", "secret"), {}, wait_seconds=DEADLINE)

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        entering = asyncio.ensure_future(asyncio.to_thread(enter))
        await asyncio.wait_for(asked.wait(), DEADLINE)
    async with serving(port) as address:
        assert (await entering).url == f"{address}/ws/chat/talk/"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["ws://127.0.0.1/ws/chat/talk/", "--user", "mira"], "no login form"),
        (["ftp://example.org/"], "no address of a page"),
        (["wss:///", "--ticket", "t"], "no address of a websocket"),
    ],
)
def test_what_leads_nowhere_is_said(arguments, why):
    with pytest.raises(CommandError, match=why) as error:
        call_command("chatmemory_chat", *arguments)
    assert error.value.returncode == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed connection"),
        (b"\x1b[2J?\r\n\r\n", "\ufffd\\[2J\\?"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "IncompleteRead"),
        (b"HTTP/1.1 500 \x1b]0;a title\x07\r\n\r\n", "500 \ufffd\\]0;a title\ufffd"),
    ],
)
def test_what_is_no_page_is_said_in_words_that_move_no_cursor(answer, why):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            with listener.accept()[0] as caller:
                caller.recv(65_536)
                caller.sendall(answer)

        speaker = threading.Thread(target=speak)
        speaker.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(CommandError, match=why):
            call_command("chatmemory_chat", url, "--wait=0")
        speaker.join()


FORM = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<form action='{}'><input type=password>"


@pytest.mark.parametrize(
    ("answers", "where"),
    [
        (["HTTP/1.1 302 -\r\nLocation: http://localhost:{port}/\r\n\r\n", FORM], "localhost"),
        ([FORM.format("http://elsewhere.test/")], "elsewhere.test"),
    ],
)
def test_no_password_is_asked_for_another_site(answers, where):
    def speak() -> None:
        for answer in answers:
            with listener.accept()[0] as caller:
                caller.recv(65_536)
                caller.sendall(answer.replace("{port}", str(port)).encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        speaker = threading.Thread(target=speak)
        speaker.start()
        with pytest.raises(CannotSignIn, match=f"elsewhere, at http://{where}"):
            find_door(f"http://127.0.0.1:{port}/", lambda: pytest.fail("it was asked for"), {})
        speaker.join()


@pytest.mark.parametrize("here", ["http", "https"])
def test_a_login_form_may_be_safer_than_the_page_but_no_less(here):
    assert _is_there("https://chat.test/login/", f"{here}://chat.test/")
    assert _is_there("http://chat.test/login/", f"{here}://chat.test/") == (here == "http")


@pytest.mark.parametrize("user", [None, "mira"])
def test_where_nobody_can_be_asked_for_a_password_it_says_so(monkeypatch, user):
    monkeypatch.delenv("CHATMEMORY_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(CannotSignIn, match="--user and CHATMEMORY_PASSWORD"):
        name_and_password(user)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "chatmemory.management.terminal", None)
    with pytest.raises(CommandError, match=r"django-chatmemory\[client\]"):
        call_command("chatmemory_chat", "ws://127.0.0.1/")


async def test_what_is_typed_is_done_and_what_comes_is_shown(mira):
    said = [{"role": "user", "content": f"old {n}"} for n in range(60)]
    await sync_to_async(services.append_messages)(**mira.talk, messages=said)
    screen: list[str] = []

    async def typed() -> AsyncIterator[str]:
        for line in ("", "hello", "/older", "/stop", "/quit", "never said"):
            yield line
            if line == "hello":
                await eventually(lambda: "hello\n> " in "".join(screen))

    cookies = {django_settings.SESSION_COOKIE_NAME: mira.cookie}
    async with (
        serving() as address,
        client.connect(f"{address}/ws/chat/talk/", cookies=cookies, proxy=None) as talk,
    ):
        assert await converse(talk, typed(), screen.append) == 0
    text = "".join(screen)
    assert text.startswith("A \ufffd[2Jtitle  (/older, /stop, /quit)\n> old 40\n")
    assert text.count("hello") == 1  # the reply: the other was typed
    assert "[10 older]\n> old 0\n" in text
    assert "[unknown_turn: No turn runs.]" in text
    assert "never said" not in text


async def test_a_stream_that_begins_anew_is_not_said_twice():
    screen: list[str] = []

    async def came() -> AsyncIterator[client.Event]:
        yield client.SessionChanged({"running": {"turn": "t"}, "waiting": []})
        yield client.Piece("t", 0, "So ", True)
        yield client.Piece("t", 0, "far", False)
        yield client.Lost(1006, "lost\x1b", 0.5)
        yield client.Synced("c")
        yield client.Piece("t", 0, "So far, ", True)
        yield client.Piece("t", 0, "So far, so", True)
        yield client.Progress("t", 0, "tool", "weather", "started")
        yield client.Progress("t", 0, "thinking", "", "ended")
        fields = {"turn": "t", "step": 0, "role": "assistant", "text": "So far, so good."}
        yield client.Message({**fields, "seq": 2, "status": "failed", "error": "model_error"})
        yield client.SessionChanged({"running": None, "waiting": []})
        yield client.Reset("cleared")
        yield client.Reset("ahead", 2)
        yield client.Reset("diverged", None)

    talk = client.Chat("ws://127.0.0.1/")
    await Screen(talk, screen.append).show(came())
    assert "".join(screen) == (
        "So far\n[connection lost (lost\ufffd), again in 0.5 s]\n[connected]\n"
        "So far, so\n[weather started]\n[thinking ended]\n"
        "So far, so good.\n[failed model_error]\n> [the history is loaded again: cleared]\n"
        "[the history is loaded again: ahead; messages lost: 2]\n"
        "[the history is loaded again: diverged; messages lost: unknown number]\n"
    )


async def test_lines_may_come_in_pieces_and_the_last_without_an_end():
    reading, writing = os.pipe()
    for data in (b"a\nb", b"b\n\xc3", b"\xa9\xff"):
        os.write(writing, data)
    os.close(writing)
    assert [line async for line in lines(reading)] == ["a", "bb", "\u00e9\ufffd"]
    os.close(reading)


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        ("a\x1b[2Jb", "a\ufffd[2Jb"),
        ("a\rb\x07\x9bc", "a\ufffdb\ufffd\ufffdc"),
        ("a\u202eb", "a\ufffdb"),
        ("line\n\ttab \u00e9 \u6f22", "line\n\ttab \u00e9 \u6f22"),
    ],
)
def test_nothing_that_is_said_moves_the_cursor(text, is_shown):
    assert shown(text) == is_shown
