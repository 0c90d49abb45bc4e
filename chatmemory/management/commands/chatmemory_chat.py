"""Starts a chat in a terminal or a pipe."""

from __future__ import annotations

import getpass
import os
import sys
import uuid
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth import authenticate
from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import ChatMemoryError, MemoryUnavailable, RateLimited
from chatmemory.management.interruptible import InterruptibleCommand

EXIT_NO_CHAT = 2
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Connections to these hosts use no proxy."""
WAIT_SECONDS = 30.0

Ticket = Callable[[], Awaitable[str]]


class Command(InterruptibleCommand):
    """Uses this project's database only for `--user`."""

    help = (
        "Chat in a terminal. In a pipe, each line of the input is a message, and the output is the "
        "replies."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012  # as Django declares it

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "url", metavar="URL", help="the websocket route, such as ws://127.0.0.1:8000/ws/chat/"
        )
        parser.add_argument(
            "key", metavar="KEY", nargs="?", help="a session; default: start a new session"
        )
        login = parser.add_mutually_exclusive_group()
        login.add_argument(
            "--user",
            help="log in as a user of this project's database; asks for the password, or reads it "
            "from CHATMEMORY_PASSWORD",
        )
        login.add_argument(
            "--cookie",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="log in to any server by a cookie, such as sessionid=…; can be repeated",
        )
        login.add_argument(
            "--ticket",
            help="log in to any server by a ticket, for one connection; see POST tickets/",
        )
        parser.add_argument(
            "--wait",
            type=float,
            default=WAIT_SECONDS,
            metavar="SECONDS",
            help="how long to retry while the server may be starting; default: %(default)g",
        )

    def handle(
        self,
        *,
        url: str,
        key: str | None,
        user: str | None,
        cookie: list[str],
        ticket: str | None,
        wait: float,
        **_: object,
    ) -> None:
        try:
            client: Any = import_module("chatmemory.client")
            terminal: Any = import_module("chatmemory.client.terminal")
        except ImportError as error:
            advice = 'pip install "django-chatmemory[client]"'
            raise CommandError(f"The client is not completely installed: {advice}") from error
        try:
            chat = client.connect(
                f"{url.rstrip('/')}/{key or uuid.uuid4()}/",
                cookies=dict(pair.partition("=")[::2] for pair in cookie),
                ticket=log_in(user) if user is not None else ticket and given(ticket),
                create=key is None,
                first_connection_seconds=wait,
                proxy=None if urlsplit(url).hostname in LOOPBACK_HOSTS else True,
            )
            sys.exit(terminal.run(chat, self._write_out, self._write_error))
        except (ChatMemoryError, ValueError) as error:
            raise CommandError(terminal.shown(str(error)), returncode=EXIT_NO_CHAT) from error

    def _write_out(self, text: str) -> None:
        self.stdout.write(text, ending="")
        self.stdout.flush()

    def _write_error(self, text: str) -> None:
        self.stderr.write(text, ending="")
        self.stderr.flush()


def log_in(username: str) -> Ticket:
    """Check the user's password; return a function that issues a ticket for each connection.

    Raises CommandError if the password is wrong or cannot be asked for.
    """
    password = os.environ.get("CHATMEMORY_PASSWORD")
    if password is None:
        if not sys.stdin.isatty():
            raise CommandError(
                "Set CHATMEMORY_PASSWORD: the input is not a terminal.", returncode=EXIT_NO_CHAT
            )
        password = getpass.getpass(f"Password of {username}: ")
    user = authenticate(username=username, password=password)
    if user is None:
        raise CommandError("Wrong user name or password.", returncode=EXIT_NO_CHAT)
    actor = services.Actor.user(user)

    async def issue() -> str:
        try:
            return await services.aissue_ticket(by=actor)
        except (MemoryUnavailable, RateLimited) as error:
            raise OSError(str(error)) from error  # the client retries after an OSError

    return issue


def given(ticket: str) -> Ticket:
    """Return a function that returns this ticket."""

    async def issue() -> str:
        return ticket

    return issue
