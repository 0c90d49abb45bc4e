"""Audit entries with valid MACs: of each removal and hold of the plan, and of readings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection

from chatmemory.access.actors import Actor
from chatmemory.models import AuditEntry
from chatmemory.services.audit.keys import key_hash
from chatmemory.services.audit.macs import mac_of
from chatmemory.services.removal.floor import REMOVALS
from tests.programs.benchmarks.console.columns import OPERATOR_PREFIX
from tests.programs.benchmarks.console.plan import DAYS
from tests.programs.benchmarks.console.rows import USER_PREFIX
from tests.programs.benchmarks.console.sizes import Size

BATCH = 5_000
REASONS = ("Asked by the customer", "Legal hold", "Spam", "Contains a password", "Retention")
_BY_STATE = {
    "is_purged": "purge",
    "is_held": "hold",
    "is_archived": "archive",
    "is_cleared": "clear",
}
_OTHER_ACTIONS = ("read",) * 12 + ("export", "reveal", "refused", "tag")


def add_audit(size: Size, now: datetime) -> None:
    """Insert the audit entries, ordered by their times."""
    draw = random.Random(1)  # noqa: S311  # no secret
    actors = [Actor.operator(user) for user in _users(OPERATOR_PREFIX)]
    entries = [*_of_states(draw, actors)]
    entries += _of_readings(draw, actors, size, now, size.audit - len(entries))
    entries.sort(key=attrgetter("created_at"))
    for entry in entries:
        entry.mac = mac_of(entry)
    AuditEntry.objects.bulk_create(entries, batch_size=BATCH)


def _users(prefix: str) -> Any:
    users = get_user_model()
    return users._default_manager.filter(**{f"{users.USERNAME_FIELD}__startswith": prefix})


def _of_states(draw: random.Random, actors: list[Actor]) -> Iterator[AuditEntry]:
    for row in _plan(f"{' OR '.join(_BY_STATE)} OR first_seq > 1"):
        action = next((name for state, name in _BY_STATE.items() if row[state]), "trim")
        columns = {"session_pk": row["pk"], "key_hash": key_hash(row["key"])}
        if action in REMOVALS:
            hidden = row["first_seq"] - 1
            columns |= {"from_seq": 1, "to_seq": hidden, "counts": {"messages": hidden}}
        yield _entry(draw, actors, action, row["state_at"], **columns)


def _of_readings(
    draw: random.Random, actors: list[Actor], size: Size, now: datetime, count: int
) -> Iterator[AuditEntry]:
    """Yield entries that change nothing; a hundredth is about whole persons."""
    sessions = [(row["pk"], key_hash(row["key"])) for row in _plan("true")]
    people = [key_hash(f"user:{user.pk}") for user in _users(USER_PREFIX)[: size.users // 100 + 1]]
    for number in range(count):
        at = now - timedelta(days=DAYS) * draw.random()
        if number % 100 == 0:
            yield _entry(draw, actors, "export", at, key_hash=draw.choice(people))
            continue
        pk, digest = draw.choice(sessions)
        action = draw.choice(_OTHER_ACTIONS)
        span = {"from_seq": 1, "to_seq": draw.randint(1, 50)} if action == "read" else {}
        yield _entry(draw, actors, action, at, session_pk=pk, key_hash=digest, **span)


def _entry(
    draw: random.Random, actors: list[Actor], action: str, at: datetime, **columns: Any
) -> AuditEntry:
    by = draw.choice(actors)
    return AuditEntry(
        actor_kind=by.kind,
        actor_id=by.id,
        actor_label=by.label,
        action=action,
        reason=""
        if action == "read"
        else f"{draw.choice(REASONS)}, case {draw.randint(1, 99_999)}",
        created_at=at,
        **columns,
    )


def _plan(condition: str) -> Iterator[dict[str, Any]]:
    columns = ("pk", "key", "first_seq", "state_at", *_BY_STATE)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(columns)} FROM console_plan WHERE {condition}")  # noqa: S608  # SQL of this module
        for values in cursor.fetchall():
            yield dict(zip(columns, values, strict=True))
