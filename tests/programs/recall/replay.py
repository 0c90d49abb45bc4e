"""The benchmark's run: send the dialogues, kill the servers, ask for each fact, count."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from tests.programs.recall.client import SimulatedUser, kill_during_replies
from tests.programs.recall.dialogues import Dialogue
from tests.programs.recall.servers import Servers

MAX_CONCURRENT_REPLIES = 8
"""Replies that run at a time; each dialogue has its own socket."""


@dataclass(slots=True)
class FactCount:
    """A line of the result."""

    title: str
    facts: int = 0
    given: int = 0
    """Facts whose turn was unchanged in the model's input."""
    answered: int | None = None
    """Facts whose value was in the model's answer; None if no question was asked."""

    def add(self, *, is_given: bool, is_answered: bool | None = None) -> None:
        """Count a fact."""
        self.facts += 1
        self.given += is_given
        if is_answered is not None:
            self.answered = (self.answered or 0) + is_answered

    def __str__(self) -> str:
        answered = "" if self.answered is None else self._share(self.answered)
        return f"{self.title:<38}{self.facts:>6}{self._share(self.given):>20}{answered:>20}"

    def _share(self, number: int) -> str:
        return f"{number} ({number / self.facts:.1%})" if self.facts else "-"


class Replay:
    """A run of the benchmark; `run` fills `counts` and `summary`."""

    def __init__(self, dialogues: Sequence[Dialogue], servers: Servers, inputs: Path) -> None:
        self.counts: list[FactCount] = []
        self.summary = ""
        self._dialogues = dialogues
        self._servers = servers
        self._inputs = inputs
        self._replies = asyncio.Semaphore(MAX_CONCURRENT_REPLIES)
        self._users = [SimulatedUser(n, servers, _login(n)) for n in range(len(dialogues))]

    async def run(self) -> None:
        """Send the first halves, kill the servers during the second halves, ask for the facts.

        Raises RuntimeError if a send is refused, a turn does not end, or a server exits.
        """
        began = time.monotonic()
        self._inputs.touch()  # a dialogue of one turn has an empty first half
        self._servers.start()
        await self._send(dialogue.texts[: dialogue.middle] for dialogue in self._dialogues)
        early = self._read_inputs()
        rest = self._send(dialogue.texts[dialogue.middle :] for dialogue in self._dialogues)
        replies = max(1, min(MAX_CONCURRENT_REPLIES, len(self._users)) // 2)
        kill = kill_during_replies(self._users, self._servers, replies=replies)
        _, (sockets, running) = await asyncio.gather(rest, kill)
        answers = await self._send(
            [fact.question for fact in dialogue.facts] for dialogue in self._dialogues
        )
        await asyncio.gather(*(user.close() for user in self._users))
        self.counts = self._count(early, self._read_inputs(), answers)
        turns = sum(len(dialogue.texts) for dialogue in self._dialogues)
        interrupted = sum(user.interrupted for user in self._users)
        self.summary = (
            f"{len(self._dialogues)} dialogues, {turns} turns sent and {self.counts[-1].facts} "
            f"facts asked for in {time.monotonic() - began:.0f} s; {len(self._servers)} servers "
            f"killed with {sockets} sockets open and {running} replies running; "
            f"{interrupted} turns interrupted."
        )

    async def _send(self, texts: Iterable[Sequence[str]]) -> list[list[str]]:
        """Send each user's texts, all users concurrently; return the replies."""
        return await asyncio.gather(*map(self._send_in_order, self._users, texts))

    async def _send_in_order(self, user: SimulatedUser, texts: Sequence[str]) -> list[str]:
        replies = []
        for text in texts:
            async with self._replies:
                replies.append(await user.send(text))
        return replies

    def _read_inputs(self) -> dict[tuple[str, str], list[str]]:
        """Return the user texts of each model input, by session key and last text.

        An empty last text stands for the session's newest input.
        """
        inputs = {}
        for line in self._inputs.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # the kill truncated this line
                continue
            texts = record["texts"]
            inputs[record["key"], texts[-1]] = inputs[record["key"], ""] = texts
        return inputs

    def _count(
        self,
        early: dict[tuple[str, str], list[str]],
        late: dict[tuple[str, str], list[str]],
        answers: Sequence[Sequence[str]],
    ) -> list[FactCount]:
        before = FactCount("first half, before the kill")
        after = FactCount("first half, asked after the kill")
        second = FactCount("second half, asked after the kill")
        both = FactCount("all, asked after the kill")
        for user, dialogue, replies in zip(self._users, self._dialogues, answers, strict=True):
            for fact, reply in zip(dialogue.facts, replies, strict=True):
                is_early = fact.turn < dialogue.middle
                if is_early:
                    before.add(is_given=fact.text in early.get((user.key, ""), ()))
                is_given = fact.text in late.get((user.key, fact.question), ())
                for count in (after if is_early else second, both):
                    count.add(is_given=is_given, is_answered=fact.value in reply)
        return [before, after, second, both]


def _login(number: int) -> str:
    """Create a user and log in; return the Cookie header."""
    client = Client()
    client.force_login(User.objects.create_user(f"recall-{number}"))
    name = settings.SESSION_COOKIE_NAME
    return f"{name}={client.cookies[name].value}"
