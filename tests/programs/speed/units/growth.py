"""The same calls in a small and a large database, and in a short and a long session."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from django.db import connection

from chatmemory import services
from chatmemory.models import Message, Session
from tests.programs.speed.cases import BenchError, Plan, Scale, Setup, Unit
from tests.programs.speed.database_cases import Append, DatabaseCase
from tests.programs.speed.databases import LARGE, SMALL
from tests.programs.speed.texts import batches_of, filled, find_faults

SESSION_ROWS = 100
"""Messages in each session of the filled databases."""
STEP = 50_000
"""Messages that one statement inserts."""
LIMIT = 20

_FILL = """\
INSERT INTO {messages} (session_id, seq, role, text, status, error, model, tokens)
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < {step})
SELECT sessions.id, n % {rows} + 1, 'user', {text}, 'complete', '', '', 100
FROM numbers JOIN (
    SELECT id, ROW_NUMBER() OVER (ORDER BY id) - 1 AS place FROM {sessions} WHERE id > {after}
) AS sessions ON sessions.place = (n - n % {rows}) / {rows}"""


class Grown(DatabaseCase):
    """A case in a database with `rows` messages, on a session with `history`."""

    def __init__(self, setup: Setup, rows: int, history: int) -> None:
        super().__init__(setup)
        self.rows = rows
        self.history = history

    def prepare(self) -> None:
        fill_database(self.rows)
        super().prepare()
        self.fill(self.history)

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        return find_faults(self.setup.key, self.expected(calls), 2)

    def expected(self, calls: Sequence[int]) -> list[tuple[str, ...]]:
        """Return the batches of two that the session must have."""
        texts = [text for batch in filled(self.history) for text in batch]
        return [tuple(texts[at : at + 2]) for at in range(0, len(texts), 2)]


class GrownAppend(Grown, Append):
    """Our append."""

    def expected(self, calls: Sequence[int]) -> list[tuple[str, ...]]:
        return [*super().expected(calls), *batches_of(calls)]


class GrownPage(Grown):
    """Our page."""

    def call(self) -> None:
        page = services.read_page(**self.address, limit=LIMIT)
        if len(page.rows) != LIMIT:
            raise BenchError(f"A page has {len(page.rows)} rows, not {LIMIT}.")


def fill_database(rows: int) -> None:
    """Fill the database to this number of messages; does nothing if it has them."""
    quote = connection.ops.quote_name
    missing = rows - Message.stored.count()
    while missing > 0:
        step = min(missing, STEP)
        before = Session.objects.order_by("pk").values_list("pk", flat=True).last() or 0
        Session.objects.bulk_create(
            Session(
                scope="bench",
                key=f"filled {before + n}",
                last_seq=SESSION_ROWS,
                tokens=SESSION_ROWS * 100,
            )
            for n in range(-(-step // SESSION_ROWS))
        )
        sql = _FILL.format(
            messages=quote(Message._meta.db_table),
            sessions=quote(Session._meta.db_table),
            after=before,
            step=step,
            rows=SESSION_ROWS,
            text="'" + "growth " * 57 + "'",
        )
        with connection.cursor() as cursor:
            cursor.execute(sql)
        missing -= step
    with connection.cursor() as cursor:
        if connection.vendor != "mysql":
            cursor.execute("VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE")


def plans(scale: Scale) -> list[Plan]:
    """Return append and page in three places: small, large, and with a long history.

    Not in the default database, where other units store messages.
    """
    small, large = scale.small_rows, scale.large_rows
    places = {
        f"{small:,} rows": (small, SESSION_ROWS, SMALL),
        f"{large:,} rows": (large, SESSION_ROWS, LARGE),
        f"history of {scale.long_history:,}": (small, scale.long_history, SMALL),
    }
    found: list[Plan] = []
    for what, make in (("append", GrownAppend), ("page", GrownPage)):
        first = f"{what}, {small:,} rows"
        for place, (rows, history, database) in places.items():
            name = f"{what}, {place}"
            found.append(
                Plan(
                    name=name,
                    make=partial(make, rows=rows, history=history),
                    baseline=None if name == first else first,
                    database=database,
                )
            )
    return found


UNIT = Unit(
    title="Growth: the same call in a larger database, and in a longer session. Compare the CPU.",
    plans=plans,
)
