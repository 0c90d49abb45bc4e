"""Invariants of every history and of the database after it.

The checks do not know the faults: they read only what clients received, and what is stored.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from tests.programs.torture.history import Event, Kind
from tests.programs.torture.speaker import reply_to

Wrong = Literal[
    "lost",
    "doubled",
    "gap",
    "changed",
    "misordered",
    "reply",
    "false",
    "foreign",
    "overrun",
    "mistaken",
    "waited",
    "no fault",
]

GRACE = 1.0
"""Seconds after the end of a lease within which a process must end the turn."""
CANARY = re.compile(r"canary-([\w-]+)")
LIVE = ("waiting", "running")


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A stored message."""

    seq: int
    role: str
    text: str
    status: str = "complete"
    client_id: str | None = None
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A stored turn."""

    client_id: str
    status: str
    overdue: float = 0.0
    """Seconds since the end of its lease, while it runs."""


@dataclass(frozen=True, slots=True)
class StoredTalk:
    """A stored session with its messages and turns."""

    key: str
    first_seq: int
    last_seq: int
    running: str | None = None
    rows: Sequence[StoredRow] = ()
    turns: Sequence[StoredTurn] = ()

    @property
    def user_rows(self) -> dict[str, StoredRow]:
        """The users' messages by client_id."""
        return {row.client_id: row for row in self.rows if row.role == "user" and row.client_id}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant."""

    wrong: Wrong
    session: str
    about: str

    def __str__(self) -> str:
        return f"{self.wrong}: {self.about} ({self.session})"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The data that checks read."""

    events: Sequence[Event]
    talks: Mapping[str, StoredTalk]
    faults: Mapping[str, int] = field(default_factory=dict)
    """The minimum number of each fault."""

    def of_kinds(self, *kinds: Kind) -> Iterator[tuple[Event, StoredTalk]]:
        """Yield the events of these kinds, each with its session."""
        for event in self.events:
            if event.kind in kinds:
                yield event, self.talks.get(event.session, StoredTalk(event.session, 1, 0))


def violations(evidence: Evidence) -> list[Violation]:
    """Run all checks; return the violations."""
    checks = (
        _lost,
        _doubled,
        _gaps,
        _changed,
        _misordered,
        _replies,
        _false_answers,
        _foreign,
        _overrun,
        _no_fault,
    )
    return [violation for check in checks for violation in check(evidence)]


def _lost(evidence: Evidence) -> Iterator[Violation]:
    """Each acknowledged message is stored, under the acknowledged number."""
    for event, talk in evidence.of_kinds("ack"):
        row = talk.user_rows.get(event.id)
        if row is None:
            if event.seq is not None or event.id not in {turn.client_id for turn in talk.turns}:
                yield Violation("lost", talk.key, f"{event.id} was acknowledged")
        elif event.seq not in (None, row.seq):
            yield Violation(
                "lost", talk.key, f"{event.id} is {row.seq}, acknowledged as {event.seq}"
            )


def _doubled(evidence: Evidence) -> Iterator[Violation]:
    """Each sent message is stored once, also under another id."""
    sent = {(event.session, event.text) for event, _ in evidence.of_kinds("invoke")}
    for talk in evidence.talks.values():
        rows = [row for row in talk.rows if row.role == "user"]
        ids = Counter(row.client_id for row in rows if row.client_id)
        texts = Counter(row.text for row in rows if (talk.key, row.text) in sent)
        for name, times in chain(ids.items(), texts.items()):
            if times > 1:
                yield Violation("doubled", talk.key, f"{name} is stored {times} times")


def _gaps(evidence: Evidence) -> Iterator[Violation]:
    """The numbers of a session have no gap."""
    for talk in evidence.talks.values():
        seqs = sorted(row.seq for row in talk.rows)
        if seqs != list(range(talk.first_seq, talk.last_seq + 1)):
            about = f"{len(seqs)} rows from {talk.first_seq} to {talk.last_seq}"
            yield Violation("gap", talk.key, about)


def _changed(evidence: Evidence) -> Iterator[Violation]:
    """Each message is stored with the text that was sent."""
    for event, talk in evidence.of_kinds("invoke"):
        row = talk.user_rows.get(event.id)
        if row is not None and row.text != event.text:
            yield Violation("changed", talk.key, f"{event.id} is {row.text!r}")


def _misordered(evidence: Evidence) -> Iterator[Violation]:
    """The messages of a client have the order in which it sent them."""
    latest: dict[tuple[str, str], int] = {}
    seen = set()
    for event, talk in evidence.of_kinds("invoke"):
        row = talk.user_rows.get(event.id)
        if row is None or (talk.key, event.id) in seen:
            continue
        seen.add((talk.key, event.id))
        if row.seq < latest.get((event.client, talk.key), 0):
            yield Violation("misordered", talk.key, f"{event.id} is {row.seq}")
        latest[event.client, talk.key] = row.seq


def _replies(evidence: Evidence) -> Iterator[Violation]:
    """Each turn has one reply, directly after its question, and clients were shown that reply."""
    shown: defaultdict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for event, talk in evidence.of_kinds("done"):
        shown[talk.key, event.id].add((event.status, event.text))
    for talk in evidence.talks.values():
        status_of = {turn.client_id: turn.status for turn in talk.turns}
        for client_id, row in talk.user_rows.items():
            replies = [other for other in talk.rows if other.turn == row.seq and other != row]
            if row.turn is None or status_of.get(client_id) in LIVE:
                continue  # appended without a turn, or checked by _overrun
            if len(replies) != 1:
                yield Violation("reply", talk.key, f"{client_id} has {len(replies)} replies")
                continue
            yield from _one_reply(talk, row, replies[0], shown[talk.key, client_id])


def _one_reply(
    talk: StoredTalk, question: StoredRow, reply: StoredRow, shown: Iterable[tuple[str, str]]
) -> Iterator[Violation]:
    whole = reply_to(question.text)
    if reply.seq != question.seq + 1 or reply.role != "assistant":
        yield Violation("reply", talk.key, f"{question.client_id} is answered at {reply.seq}")
    if not whole.startswith(reply.text) or (reply.status == "complete" and reply.text != whole):
        yield Violation("reply", talk.key, f"{question.client_id} is answered {reply.text!r}")
    if any(seen != (reply.status, reply.text) for seen in shown):
        yield Violation("reply", talk.key, f"{question.client_id} was shown another reply")


def _false_answers(evidence: Evidence) -> Iterator[Violation]:
    """A message that was rejected for good is not stored."""
    for event, talk in evidence.of_kinds("error"):
        if event.is_final and event.id in talk.user_rows:
            yield Violation("false", talk.key, f"{event.id} was rejected, but is stored")


def _foreign(evidence: Evidence) -> Iterator[Violation]:
    """No session contains or shows the canary of another session."""
    for event, talk in evidence.of_kinds("token", "done"):
        if foreign_canaries(event.text, talk.key):
            yield Violation("foreign", talk.key, f"{event.client} was shown {event.text[:80]!r}")
    for talk in evidence.talks.values():
        for row in talk.rows:
            if foreign_canaries(row.text, talk.key):
                yield Violation("foreign", talk.key, f"message {row.seq} is {row.text[:80]!r}")


def foreign_canaries(text: str, key: str) -> set[str]:
    """Return the canaries of other sessions in a text, which may end within a canary."""
    found = {match for match in CANARY.findall(text) if match != key}
    last = CANARY.search(text[text.rfind("canary-") :]) if "canary-" in text else None
    if last and text.endswith(last[0]) and key.startswith(last[1]):
        found.discard(last[1])
    return found


def _overrun(evidence: Evidence) -> Iterator[Violation]:
    """No turn runs beyond its lease, and no turn waits at the end."""
    for talk in evidence.talks.values():
        live = [turn for turn in talk.turns if turn.status in LIVE]
        for turn in live:
            about = f"{turn.client_id} is {turn.status}, its lease ended {turn.overdue:.1f} s ago"
            if turn.status == "waiting" or turn.overdue > GRACE:
                yield Violation("overrun", talk.key, about)
        if talk.running is not None and talk.running not in {turn.client_id for turn in live}:
            yield Violation(
                "overrun", talk.key, f"the session names {talk.running}, which does not run"
            )


def _no_fault(evidence: Evidence) -> Iterator[Violation]:
    """Each fault of the plan has happened as often as required."""
    happened = Counter(event.text for event in evidence.events if event.kind == "fault")
    for fault, wanted in evidence.faults.items():
        if happened[fault] < wanted:
            yield Violation("no fault", "", f"{fault}: {happened[fault]} of {wanted}")
