"""How much of what users said is still there after the servers were killed."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import BaseCommand, CommandError, CommandParser
from django.test import Client

from chatmemory.errors import BadInput
from project.recall_client import Talk, kill_in_the_middle
from project.recall_dialogues import Dialogue, read_dialogues
from project.recall_servers import Servers, own_database

TURNS_AT_ONCE = 8
"""How many replies are under way at a time; each dialogue has a socket of its own."""


@dataclass(slots=True)
class Share:
    """A line of the result."""

    about: str
    facts: int = 0
    given: int = 0
    """Facts whose sentence was in what the model was given."""
    said: int | None = None
    """Facts that the model said back; None where it wasn't asked."""

    def count(self, *, is_given: bool, is_said: bool | None = None) -> None:
        """Count a fact."""
        self.facts += 1
        self.given += is_given
        if is_said is not None:
            self.said = (self.said or 0) + is_said

    def __str__(self) -> str:
        said = "" if self.said is None else self._of_all(self.said)
        return f"{self.about:<38}{self.facts:>6}{self._of_all(self.given):>20}{said:>20}"

    def _of_all(self, number: int) -> str:
        return f"{number} ({number / self.facts:.1%})" if self.facts else "-"


class Command(BaseCommand):
    """Replays dialogues against servers of its own, kills these in the middle, and asks."""

    help = (
        "Say the users' turns of dialogues over websockets to servers on a database of their own, "
        "kill the servers half way, say the rest, ask for each fact, and count how many are in "
        'what the model is given. A line of the file is {"turns": [{"role": "human" or "ai", '
        '"text"}], "facts": [{"turn", "slot", "value"}]}.'
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--memory",
            choices=["window", "process"],
            default="window",
            help="what the model knows: its window, or what its process remembers in a dict",
        )
        parser.add_argument(
            "--at-least",
            type=float,
            default=0.98,
            metavar="SHARE",
            help="fail if less of the facts is in what the model is given; 0.98",
        )
        parser.add_argument(
            "--servers", type=int, metavar="N", help="processes; 2 with REDIS_URL, else 1"
        )
        parser.add_argument("--limit", type=int, metavar="N", help="only the first N dialogues")

    def handle(
        self,
        *,
        file: Path,
        memory: str,
        at_least: float,
        servers: int | None,
        limit: int | None,
        **options: object,
    ) -> None:
        if find_spec("uvicorn") is None or find_spec("websockets") is None:
            raise CommandError("Uvicorn and websockets are missing; `make test` installs them.")
        dialogues = _dialogues(file, limit)
        number = servers or (2 if os.environ.get("REDIS_URL") else 1)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through all that cleans up
        with (
            tempfile.TemporaryDirectory(prefix="chatmemory-recall-") as name,
            own_database(Path(name)) as url,
        ):
            folder = Path(name)
            env = {
                "DJANGO_SETTINGS_MODULE": "project.recall_settings",
                "DATABASE_URL": url,
                "DEBUG": "0",
                "SECRET_KEY": settings.SECRET_KEY,
                "RECALL_FILE": str(folder / "inputs.jsonl"),
                "RECALL_MEMORY": memory,
                "RECALL_NAME": f"recall-{secrets.token_hex(4)}",
            }
            with closing(Servers(number, env, folder / "log")) as running:
                replay = Replay(dialogues, running, folder / "inputs.jsonl")
                try:
                    asyncio.run(replay.run())
                except (RuntimeError, TimeoutError) as error:
                    raise CommandError(str(error) or "The servers don't answer.") from error
        self.stdout.write(f"{'':<38}{'facts':>6}{'given to the model':>20}{'said back':>20}")
        for share in replay.shares:
            self.stdout.write(str(share))
        self.stdout.write(f"\nMemory: {memory}. {replay.what_was_done}")
        least = min(share.given / share.facts for share in replay.shares if share.facts)
        if least < at_least:
            raise CommandError(f"{least:.1%} given to the model, less than {at_least:.1%}.")


class Replay:
    """The dialogues, said and asked for."""

    def __init__(self, dialogues: Sequence[Dialogue], servers: Servers, inputs: Path) -> None:
        self.shares: list[Share] = []
        self.what_was_done = ""
        self._dialogues = dialogues
        self._servers = servers
        self._inputs = inputs
        self._turns = asyncio.Semaphore(TURNS_AT_ONCE)
        self._talks = [Talk(n, servers, _cookie(n)) for n in range(len(dialogues))]

    async def run(self) -> None:
        """Say the first halves, kill the servers during the second, ask; raises RuntimeError."""
        began = time.monotonic()
        self._servers.start()
        await self._say(dialogue.said[: dialogue.middle] for dialogue in self._dialogues)
        early = self._given()
        rest = self._say(dialogue.said[dialogue.middle :] for dialogue in self._dialogues)
        replies = max(1, min(TURNS_AT_ONCE, len(self._talks)) // 2)
        kill = kill_in_the_middle(self._talks, self._servers, replies=replies)
        _, (sockets, under_way) = await asyncio.gather(rest, kill)
        answers = await self._say(
            [fact.question for fact in dialogue.facts] for dialogue in self._dialogues
        )
        await asyncio.gather(*(talk.close() for talk in self._talks))
        self.shares = self._count(early, self._given(), answers)
        turns = sum(len(dialogue.said) for dialogue in self._dialogues)
        lost = sum(talk.interrupted for talk in self._talks)
        self.what_was_done = (
            f"{len(self._dialogues)} dialogues, {turns} turns said and {self.shares[-1].facts} "
            f"facts asked for in {time.monotonic() - began:.0f} s; {len(self._servers)} servers "
            f"killed with {sockets} sockets open and {under_way} replies under way; "
            f"{lost} turns ended as interrupted."
        )

    async def _say(self, texts: Iterable[Sequence[str]]) -> list[list[str]]:
        """Say these in each talk, in all at once; returns the replies."""
        return await asyncio.gather(*map(self._say_in_order, self._talks, texts))

    async def _say_in_order(self, talk: Talk, texts: Sequence[str]) -> list[str]:
        replies = []
        for text in texts:
            async with self._turns:
                replies.append(await talk.say(text))
        return replies

    def _given(self) -> dict[tuple[str, str], list[str]]:
        """What the user had said in the model's input, by session and last text.

        Under an empty text it is the newest of the session.
        """
        given = {}
        for line in self._inputs.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # cut by the kill
                continue
            said = record["said"]
            given[record["key"], said[-1]] = given[record["key"], ""] = said
        return given

    def _count(
        self,
        early: dict[tuple[str, str], list[str]],
        late: dict[tuple[str, str], list[str]],
        answers: Sequence[Sequence[str]],
    ) -> list[Share]:
        before = Share("first half, before the kill")
        after = Share("first half, asked after the kill")
        second = Share("second half, asked after the kill")
        both = Share("all, asked after the kill")
        for talk, dialogue, replies in zip(self._talks, self._dialogues, answers, strict=True):
            for fact, reply in zip(dialogue.facts, replies, strict=True):
                is_early = fact.turn < dialogue.middle
                if is_early:
                    before.count(is_given=fact.text in early.get((talk.key, ""), ()))
                is_given = fact.text in late.get((talk.key, fact.question), ())
                for share in (after if is_early else second, both):
                    share.count(is_given=is_given, is_said=fact.value in reply)
        return [before, after, second, both]


def _dialogues(file: Path, limit: int | None) -> list[Dialogue]:
    try:
        dialogues = list(islice(read_dialogues(file), limit))
    except (OSError, BadInput) as error:
        raise CommandError(str(error)) from error
    if not any(dialogue.facts for dialogue in dialogues):
        raise CommandError("The file has no facts to ask for.")
    return dialogues


def _cookie(number: int) -> str:
    """The cookie of a new user who is signed in."""
    client = Client()
    client.force_login(User.objects.create_user(f"recall-{number}"))
    name = settings.SESSION_COOKIE_NAME
    return f"{name}={client.cookies[name].value}"
