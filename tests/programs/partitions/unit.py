"""The same calls on tables with and without partitions, each in a database filled with messages."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import override_settings

from chatmemory.models import Turn
from chatmemory.services import user_scope
from chatmemory.services.turns.admission import admit_turn
from chatmemory.services.turns.claims import claim_next
from chatmemory.services.turns.progress import finish_turn, renew_leases, save_partial, start_turn
from tests.programs.partitions.plans import executed_statements
from tests.programs.partitions.tables import partition_tables
from tests.programs.speed.cases import BenchError, Plan, Scale, Setup, Unit
from tests.programs.speed.database_cases import Append, DatabaseCase
from tests.programs.speed.units.growth import fill_database
from tests.programs.speed.units.page import ReadPage
from tests.programs.speed.units.turn import WholeTurn

PLAIN, PARTITIONED = "plain", "partitioned"
"""The two databases."""
OF_A_PERSON = '"chatmemory_turn"."scope" = '
"""In the condition of TURNS_PER_USER, which counts the turns in all sessions of a person."""

_FILL_TURNS = """
INSERT INTO chatmemory_turn (session_id, client_id, status, asked, user_seq, epoch, lease_owner,
    partial, model, usage, error, ended_at)
SELECT session_id, 'filled ' || seq, 'complete', '', seq, 1, '', '', '', '', '', now()
FROM chatmemory_message WHERE seq % 2 = 1"""


class FilledCase(DatabaseCase):
    """A case in one of the databases."""

    has_partitions = False

    def prepare(self) -> None:
        if self.has_partitions:
            partition_tables(connection)
        if not Turn.objects.exists():
            fill_database(self.setup.scale.large_rows)
            with connection.cursor() as cursor:
                cursor.execute(_FILL_TURNS)
                cursor.execute("VACUUM ANALYZE")
        super().prepare()

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        """Compare the rows; then find statements of another call that touch several partitions."""
        faults = super().find_faults(calls)
        with executed_statements(connection) as executed:
            self.call()
        return faults + [
            f"{count} partitions of {table} in: {statement.sql}"
            for statement in executed
            for table, count in statement.partitions.items()
            if count > 1 and OF_A_PERSON not in statement.sql
        ]


class QueuedTurn(WholeTurn):
    """Our turn of a user: it waits first, streams its reply, and renews its lease once."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._limit = override_settings(CHATMEMORY={**settings.CHATMEMORY, "TURNS_PER_USER": 3})

    def prepare(self) -> None:
        user, _ = User.objects.get_or_create(username="bench")
        self.address["scope"] = user_scope(user)
        self._limit.enable()
        super().prepare()

    def call(self) -> None:
        asked, reply = self.next_batch()
        admitted = admit_turn(**self.address, client_id=uuid.uuid4().hex, content=asked)
        claim = claim_next(session_pk=admitted.session_pk, owner="bench")
        if claim is None or not start_turn(claim=claim):
            raise BenchError("A turn was admitted, but did not start.")
        save_partial(claim=claim, text=reply[:100], step=0)
        renew_leases(claims=[claim])
        finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": reply})

    def close(self) -> None:
        self._limit.disable()
        super().close()


def _plans(case: type[DatabaseCase], name: str) -> list[Plan]:
    plain = type(f"Filled{case.__name__}", (FilledCase, case), {})
    partitioned = type(f"Partitioned{case.__name__}", (plain,), {"has_partitions": True})
    return [
        Plan(name=name, make=plain, database=PLAIN),
        Plan(name=f"{name}, partitions", make=partitioned, baseline=name, database=PARTITIONED),
    ]


CASES = {"append": Append, "page": ReadPage, "turn": WholeTurn, "queued turn": QueuedTurn}


def plans(scale: Scale) -> list[Plan]:
    """Return each call in both databases. Raises BenchError if no PostgreSQL is used."""
    if connection.vendor != "postgresql":
        raise BenchError("Partitions need PostgreSQL.")
    return [plan for name, case in CASES.items() for plan in _plans(case, name)]


UNIT = Unit(title="The same call on plain tables and on tables with partitions.", plans=plans)
