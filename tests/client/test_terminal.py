"""`chatmemory_chat`: a chat in a terminal and in a pipe, as a program and in this process."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command

from chatmemory import client, codec, services
from chatmemory.access.tickets import MAX_TICKETS
from chatmemory.client import terminal
from chatmemory.client.terminal import Screen, converse, lines, shown
from chatmemory.management.commands.chatmemory_chat import given, log_in
from tests.factories import make_session, make_user
from tests.servers import (
    DEADLINE,
    Server,
    eventually,
    own_threads,
    serving,
    sign_in,
    wait_for,
)

POLL_SECONDS = 0.1
"""The longest wait for output before the pattern is searched again."""


@pytest.fixture
def site(live_database_env, settings, tmp_path) -> Iterator[Server]:
    """A server with a session `talk` of the user `mira`."""
    # The server has the project's settings, which do not know the hasher of the tests.
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
        [*command, f"{site.address}/ws/chat/", "talk", "--user", "mira"],
        cwd=django_settings.BASE_DIR,
        env={**site.env, "CHATMEMORY_PASSWORD": "secret"},
        **options,
    )


class Terminal:
    """The program in a pseudo-terminal."""

    def __init__(self, site: Server) -> None:
        self._mine, theirs = pty.openpty()
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process = chat(site, **streams, start_new_session=True)
        os.close(theirs)
        self._output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._mine)

    def type(self, line: str) -> None:
        os.write(self._mine, f"{line}\n".encode())

    def wait_for_output(self, pattern: str) -> None:
        """Wait until the pattern is on the screen; discard the output up to it."""
        wait_for(lambda: re.search(pattern, self._read()) is not None, f"no {pattern}")
        self._output = re.split(pattern, self._output, maxsplit=1)[-1]

    def _read(self) -> str:
        if select.select([self._mine], [], [], POLL_SECONDS)[0]:
            self._output += os.read(self._mine, 65_536).decode().replace("\r\n", "\n")
        return self._output

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        return int(self.process.wait(DEADLINE))


@pytest.mark.long
def test_it_chats_in_a_pipe_and_in_a_terminal(site):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with chat(site, text=True, **pipes) as process:
        out, err = process.communicate("good morning\n\nfail", timeout=DEADLINE)
    assert (process.returncode, out, err) == (
        1,
        "good morning\nSo far, \n",
        "[failed responder_error]\n",
    )
    with Terminal(site) as terminal:
        terminal.wait_for_output(
            r"New chat.*\n> good morning\ngood morning\n> fail\nSo far, \n\[failed"
        )
        terminal.type("count 300")
        terminal.wait_for_output(r"1 2 3 ")
        terminal.interrupt()
        terminal.wait_for_output(r"\[interrupted\]")
        terminal.type("count 300")
        terminal.wait_for_output(r"1 2 3 ")
        site.kill()
        terminal.wait_for_output(r"connection lost")
        site.start()
        terminal.wait_for_output(r"\[connected\]")
        terminal.interrupt()
        terminal.wait_for_output(r"\[stopping")
        terminal.interrupt()
        assert terminal.wait() == 130


@pytest.fixture
def mira(transactional_db, settings):
    settings.CHATMEMORY = {"RESPONDER": "tests.speaker.answer", "SENDS_PER_MINUTE": None}
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    with own_threads():
        user = make_user("mira")
        make_session(owner=user, title="A \x1b[2Jtitle")
        yield sign_in(user)


async def test_each_connection_of_a_user_has_a_new_ticket(mira, monkeypatch):
    monkeypatch.setenv("CHATMEMORY_PASSWORD", "secret")
    issue = await sync_to_async(log_in, thread_sensitive=False)("mira")
    async with serving() as address:
        for _ in range(2):
            url = f"{address}/ws/chat/talk/"
            async with client.connect(url, ticket=issue, proxy=None) as talk:
                assert (await talk.ask("hi")).text == "hi"


@pytest.mark.django_db
@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_wrong_password_is_refused(monkeypatch, password):
    make_user("mira")
    monkeypatch.setenv("CHATMEMORY_PASSWORD", password)
    with pytest.raises(CommandError, match="Wrong user name or password") as error:
        call_command("chatmemory_chat", "ws://127.0.0.1/ws/chat/", user="mira")
    assert error.value.returncode == 2


@pytest.mark.django_db
async def test_too_many_tickets_of_a_user_are_an_os_error_which_the_client_retries(monkeypatch):
    monkeypatch.setenv("CHATMEMORY_PASSWORD", "secret")
    await sync_to_async(make_user)("mira")
    issue = await sync_to_async(log_in)("mira")
    for _ in range(MAX_TICKETS):
        await issue()
    with pytest.raises(OSError, match="tickets"):
        await issue()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["ftp://example.org/", "talk"], "not the URL of a websocket"),
        (["wss:///", "--ticket", "t"], "not the URL of a websocket"),
    ],
)
def test_an_address_that_is_no_websocket_is_refused(arguments, error):
    with pytest.raises(CommandError, match=error) as raised:
        call_command("chatmemory_chat", *arguments)
    assert raised.value.returncode == 2


async def test_a_used_ticket_is_refused(mira, capfd):
    ticket = await services.aissue_ticket(by=services.Actor.user(mira.user))

    def run() -> object:
        with pytest.raises(SystemExit) as ended:
            call_command("chatmemory_chat", f"{address}/ws/chat/", "talk", ticket=ticket, wait=0)
        return ended.value.code

    async with serving() as address:
        url = f"{address}/ws/chat/talk/"
        async with client.connect(url, ticket=given(ticket), proxy=None):
            pass
        assert await asyncio.to_thread(run) == 2
    assert "4401" in capfd.readouterr().err


@pytest.mark.parametrize("answer", [b"\x1b[2J?\r\n\r\n", b"HTTP/1.1 500 \x1b]0;a\x07\r\n\r\n"])
def test_an_answer_that_is_no_handshake_cannot_move_the_cursor(answer, capfd):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(65_536)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(SystemExit) as ended:
            call_command("chatmemory_chat", url, "--wait=0")
        server.join()
    assert ended.value.code == 2
    shown_error = capfd.readouterr().err
    assert "1006" in shown_error
    assert not {"\x1b", "\x07"} & set(shown_error)


def test_a_password_that_cannot_be_asked_for_is_refused(monkeypatch):
    monkeypatch.delenv("CHATMEMORY_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(CommandError, match="CHATMEMORY_PASSWORD"):
        log_in("mira")


def test_the_error_for_a_missing_package_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "chatmemory.client.terminal", None)
    with pytest.raises(CommandError, match=r"django-chatmemory\[client\]"):
        call_command("chatmemory_chat", "ws://127.0.0.1/")


async def test_typed_lines_are_executed_and_messages_shown(mira):
    messages = [{"role": "user", "content": f"old {n}"} for n in range(60)]
    await sync_to_async(services.append_messages)(**mira.talk, messages=messages)
    screen: list[str] = []

    async def typed() -> AsyncIterator[str]:
        for line in ("", "hello", "/older", "/stop", "/quit", "after the end"):
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
    assert text.count("hello") == 1  # only the reply: the typed line is on the screen already
    assert "[10 older]\n> old 0\n" in text
    assert "[unknown_turn: No turn runs.]" in text
    assert "after the end" not in text


async def test_a_restarted_stream_is_shown_once():
    screen: list[str] = []

    async def events() -> AsyncIterator[client.Event]:
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
    await Screen(talk, screen.append).show(events())
    assert "".join(screen) == (
        "So far\n[connection lost (lost\ufffd); reconnecting in 0.5 s]\n[connected]\n"
        "So far, so\n[weather started]\n[thinking ended]\n"
        "So far, so good.\n[failed model_error]\n> [history reloaded: cleared]\n"
        "[history reloaded: ahead; messages lost: 2]\n"
        "[history reloaded: diverged; messages lost: unknown number]\n"
    )


async def test_lines_can_arrive_in_pieces_and_the_last_without_a_line_break():
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
def test_no_text_moves_the_cursor(text, is_shown):
    assert shown(text) == is_shown


def test_the_terminal_hides_the_same_characters_as_the_pages():
    assert terminal.HIDDEN == codec.HIDDEN
