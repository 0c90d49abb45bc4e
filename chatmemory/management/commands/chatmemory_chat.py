"""Chats in a terminal."""

from __future__ import annotations

import getpass
import os
import sys
from importlib import import_module
from typing import Any

from django.core.management import CommandError, CommandParser

from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.management.signing_in import CannotSignIn, Door, find_door

NO_CHAT = 2
"""The code of an end without a chat."""
WAIT_SECONDS = 30.0


class Command(InterruptibleCommand):
    """Needs neither the database nor the settings of the server; only its address."""

    help = (
        "Chat in a terminal. URL is a chat's page, the list of chats (for a new one), or a "
        "websocket (ws:, wss:). In a pipe, each line of the input is a message and the output is "
        "the replies."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012  # as Django has it

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("url", metavar="URL")
        parser.add_argument(
            "--user", help="sign in; the password is asked for, or taken from CHATMEMORY_PASSWORD"
        )
        parser.add_argument(
            "--cookie",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="send this cookie instead, such as sessionid=…",
        )
        parser.add_argument("--ticket", help="sign in by this ticket; URL is a websocket's then")
        parser.add_argument(
            "--wait",
            type=float,
            default=WAIT_SECONDS,
            metavar="SECONDS",
            help="how long to try to reach a server that may be starting; default: %(default)g",
        )

    def handle(
        self,
        *,
        url: str,
        user: str | None,
        cookie: list[str],
        ticket: str | None,
        wait: float,
        **_: object,
    ) -> None:
        try:
            terminal: Any = import_module("chatmemory.management.terminal")
        except ImportError as error:
            hint = "pip install 'django-chatmemory[client]'"
            raise CommandError(f"The package websockets is missing: {hint}") from error
        if user is not None and url.startswith(("ws:", "wss:")):
            raise CommandError("A websocket has no login form: use --cookie.", returncode=NO_CHAT)
        cookies = dict(pair.partition("=")[::2] for pair in cookie)
        try:
            if url.startswith(("ws:", "wss:")) or ticket:
                door = Door(url=url, cookies=cookies, create=False)
            else:
                door = find_door(url, lambda: name_and_password(user), cookies, wait_seconds=wait)
            code = terminal.run(door, ticket, self._write, self._complain, wait_seconds=wait)
        except (CannotSignIn, ValueError) as error:
            raise CommandError(terminal.shown(str(error)), returncode=NO_CHAT) from error
        sys.exit(code)

    def _write(self, text: str) -> None:
        self.stdout.write(text, ending="")
        self.stdout.flush()

    def _complain(self, text: str) -> None:
        self.stderr.write(text, ending="")
        self.stderr.flush()


def name_and_password(user: str | None) -> tuple[str, str]:
    """Raises CannotSignIn where nobody can be asked."""
    name, password = user, os.environ.get("CHATMEMORY_PASSWORD")
    if name is None or (password is None and not sys.stdin.isatty()):
        raise CannotSignIn("Sign in with --user and CHATMEMORY_PASSWORD, or with --cookie.")
    return name, getpass.getpass(f"Password of {name}: ") if password is None else password
