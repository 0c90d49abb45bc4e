"""Lock a row of each table, one after another; only the row's own session may wait."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib.sessions.models import Session as LoginSession
from django.db.models import Model

from chatmemory import services
from chatmemory.models import (
    AuditEntry,
    AuditSeal,
    DatabaseNow,
    Feedback,
    Message,
    Reading,
    Session,
    SessionTag,
    Ticket,
    Turn,
    TurnQuerySet,
)
from chatmemory.services import Actor
from chatmemory.services.audit import readings
from chatmemory.services.audit.seals import seal_audit
from chatmemory.services.turns import progress
from tests.conftest import missing
from tests.locking import locked
from tests.programs.torture.checker import Violation
from tests.programs.torture.talker import Talker, close_all, talkers
from tests.programs.torture.world import LEASE, Figure, Outcome, World, db, now
from tests.rest import request
from tests.servers import Connection, Person, Server

HELD = 15.0
"""Maximum time for which a lock is held, in seconds."""
OPERATOR = Actor("operator", "torture", "torture")
FAULT = "row locked"

ROWS: dict[str, Callable[[Talker], Model]] = {
    "session": lambda own: _session(own),
    "turn": lambda own: _session(own).turns.get(status="running"),
    "message": lambda own: Message.stored.filter(session=_session(own)).latest("seq"),
    "session tag": lambda own: SessionTag.objects.get(session=_session(own)),
    "feedback": lambda own: Feedback.objects.get(session=_session(own)),
    "reading": lambda own: Reading.objects.get(session_pk=_session(own).pk),
    "audit entry": lambda own: AuditEntry.objects.latest("pk"),
    "audit seal": lambda own: AuditSeal.objects.latest("number"),
    "ticket": lambda own: _expired_ticket(own),
    "Django session": lambda own: LoginSession.objects.get(pk=own.person.cookie),
    "user": lambda own: own.person.user,
}
WAITS = {"session", "turn"}
"""Rows whose own session waits."""


async def locks(world: World, rounds: int, *, rows: tuple[str, ...] = tuple(ROWS)) -> Outcome:
    """Lock each of these rows, and run the work that must not wait for it."""
    if "sqlite" in world.env.get("DATABASE_URL", "sqlite"):
        missing("SQLite locks no rows")
    # With this LOCK_TIMEOUT, a wait for the lock lasts until its release, and is detected.
    server, *_ = world.servers or await world.start(1, LOCK_TIMEOUT=2 * HELD)
    own, replying, sending = people = await talkers(world, 3, lambda: server)
    await asyncio.gather(*(talker.ask("count 1") for talker in people))
    await db(_prepare)(own)
    found: list[Violation] = []
    took: list[float] = []
    for _ in range(rounds):
        for name in rows:
            if name == "turn":
                mine = await own.begin("count 100")
            else:
                await own.ask("count 1")
            lock = locked(await db(ROWS[name])(own))
            await db(lock.__enter__)()
            began = now()
            if name != "turn":
                mine = asyncio.ensure_future(own.ask("count 1"))
            works = {
                "a reply": _reply(replying),
                "a send": sending.ask("count 1"),
                "a socket": _socket(world, server),
                "a sweep": _sweep(world),
                "an operator": db(_operate)(sending),
            }
            tasks = {what: asyncio.ensure_future(work) for what, work in works.items()}
            if name not in WAITS:
                tasks["its own session"] = mine
            await asyncio.wait(tasks.values(), timeout=HELD)
            took.append(now() - began)
            late = [what for what, task in tasks.items() if not task.done()]
            assert name not in WAITS or not mine.done(), "the lock was not held"
            await db(lock.__exit__)(None, None, None)
            world.fault(FAULT)
            await asyncio.gather(mine, *tasks.values(), return_exceptions=True)
            found += [Violation("waited", name, what) for what in late]
            found += [
                Violation("waited", name, f"{what}: {task.exception()!r}")
                for what, task in tasks.items()
                if task.exception() is not None
            ]
    settled = await world.settle()
    await close_all(people)
    found += await world.check(faults={FAULT: rounds * len(rows)})
    figures = [
        Figure("rows locked", rounds * len(rows)),
        Figure("longest s of the other work", max(took), time_limit=8),
        settled,
    ]
    return Outcome(found, figures)


def _session(talker: Talker) -> Session:
    return Session.objects.get(key=talker.key)


def _prepare(own: Talker) -> None:
    """Store a row of the session in each table that a turn does not write."""
    readings.record_reading(session=_session(own), by=OPERATOR, from_seq=1, to_seq=2)
    services.tag_session(**_at(own), tag="torture")
    turn = _session(own).turns.latest("pk").client_id
    person = Actor.user(own.person.user)
    services.set_feedback(session_key=own.key, by=person, turn=turn, value=1)
    seal_audit()


def _at(talker: Talker) -> dict[str, Any]:
    """Address a session for an operator."""
    scope = services.user_scope(talker.person.user)
    return {"session_key": talker.key, "by": OPERATOR, "scope": scope, "reason": "torture"}


async def _reply(talker: Talker) -> None:
    """Stream a reply for several leases."""
    client_id = await talker.ask("count 60")
    turn = await db(Turn.objects.get)(client_id=client_id)
    assert turn.status == "complete", f"the turn is {turn.status}"


async def _socket(world: World, server: Server) -> None:
    """Sign in, create a session, and open a socket with a ticket."""
    person, key = await world.person()
    opened = await request(server, person, "/api/sessions/", {})
    issued = await request(server, person, "/api/tickets/", {})
    assert (opened.status, issued.status) == (201, 201), f"{opened.status}, {issued.status}"
    async with Connection(server, None, key, protocols=issued.json()["protocols"]) as tab:
        await tab.hello()


async def _sweep(world: World) -> None:
    """Wait until the sweep ends the turn of a dead process, after the locked turn's lease."""
    await asyncio.sleep(1.5 * LEASE)
    person, key = await world.person()
    turn = await db(_abandoned)(person, key)
    async with asyncio.timeout(4 * HELD):
        while await db(turn.exists)():  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.1)


def _abandoned(person: Person, key: str) -> TurnQuerySet:
    claim = services.admit_turn(
        session_key=key,
        by=Actor.user(person.user),
        client_id=f"{key}.1",
        content="hi",
        owner="dead",
    ).claim
    assert claim is not None
    assert progress.start_turn(claim=claim)
    turn = Turn.objects.filter(pk=claim.turn_pk, status="running")
    turn.update(lease_until=DatabaseNow())
    return turn


def _operate(talker: Talker) -> None:
    """Write to the tables that operators use."""
    readings.record_reading(session=_session(talker), by=OPERATOR, from_seq=1, to_seq=1)
    services.tag_session(**_at(talker), tag="torture")
    services.untag_session(**_at(talker), tag="torture")
    seal_audit()


def _expired_ticket(own: Talker) -> Ticket:
    return Ticket.objects.create(
        digest=secrets.token_hex(32),
        owner=f"user:{own.person.user.pk}",
        proof="",
        login="",
        expires_at=DatabaseNow() - timedelta(minutes=1),
    )
