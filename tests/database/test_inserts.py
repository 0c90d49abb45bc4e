"""The text of the statement that stores rows is built once for all writes of one shape."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models.functions import Now
from django.test import override_settings

from chatmemory.codec import Row
from chatmemory.database import inserts
from chatmemory.database.inserts import OPEN_SESSION, _Write
from chatmemory.database.turn_writes import TurnInsert, TurnUpdate

pytestmark = pytest.mark.usefixtures("postgresql")

LEASE_ENDS = [Now() + timedelta(seconds=20), Now() + timedelta(seconds=600)]


def any_row(chance: random.Random) -> Row:
    return Row(
        role=chance.choice(("user", "assistant", "host's")),
        text=chance.choice(("", "text", "complete", chance.randbytes(4).hex())),
        body=chance.choice((None, "{}")),
        tokens=chance.choice((0, 1, 2, 300)),
        status=chance.choice(("complete", "failed")),
        error=chance.choice(("", "internal")),
        model=chance.choice(("", "a", "b")),
        step=chance.choice((None, 0, 1, 7)),
    )


def any_turn_write(chance: random.Random) -> TurnInsert | TurnUpdate | None:
    columns = {
        "status": chance.choice(("running", "failed")),
        "lease_owner": chance.choice(("", "process 1", "process 2")),
        "lease_until": chance.choice((None, *LEASE_ENDS)),
    }
    write = chance.choice((None, TurnInsert, TurnUpdate))
    if write is TurnUpdate:
        return TurnUpdate(chance.choice((1, 5)), chance.choice(("c1", "c2")), columns)
    return None if write is None else TurnInsert({**columns, "client_id": "c1"})


def any_write(chance: random.Random) -> _Write:
    address: dict[str, Any] = {"scope": "s", "key": chance.choice(("a", "b"))}
    return _Write(
        rows=[any_row(chance) for _ in range(chance.choice((1, 2, 2, 3, 6)))],
        address=chance.choice((address, {"id": chance.choice((1, 2, 5))})),
        conditions={**OPEN_SESSION, "running": chance.choice((None, "c1", "c2"))},
        only_unexpired=chance.choice((True, False)),
        client_id=chance.choice((None, "c1", "c2")),
        author=chance.choice((None, "operator:3")),
        turn=chance.choice((None, 1, 5)),
        begins_turn=chance.choice((True, False)),
        updates=chance.choice(({}, {"running": None}, {"running": "c1"})),
        increments=chance.choice(({}, {"revision": 1}, {"revision": 1, "waiting": -1})),
        turn_write=any_turn_write(chance),
        is_shown=chance.choice((True, False)),
    )


@pytest.mark.slow
def test_a_write_of_a_known_shape_has_the_statement_of_a_new_one(monkeypatch):
    chance = random.Random(7)  # noqa: S311  # no secret
    connection = connections["default"]
    known: dict[object, Any] = {}
    for _ in range(1_000):
        write = any_write(chance)
        limits = {"SESSION_TTL": chance.choice((None, 60)), "LOCK_TIMEOUT": chance.choice((1, 2))}
        monkeypatch.setattr(connection, "in_atomic_block", chance.choice((True, False)))
        with override_settings(CHATMEMORY=limits):
            monkeypatch.setattr(inserts, "_texts", known)
            statement = inserts._postgresql_statement(connection, write)
            monkeypatch.setattr(inserts, "_texts", {})
            assert statement == inserts._postgresql_statement(connection, write)
