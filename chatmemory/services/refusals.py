"""Why a write was refused, or that it was done before: one read, then questions in fixed order."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from chatmemory.codec import Row
from chatmemory.errors import Archived, Conflict, HistoryCleared, MemoryUnavailable, NotFound
from chatmemory.models import CLOCK, Message, Session, Turn, unexpired_sql
from chatmemory.services.faults import database

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundTurn:
    """The turn under a client_id."""

    pk: int
    status: str
    asked: str
    user_seq: int | None
    epoch: int
    replaces_from: int | None


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row that a client_id stored."""

    seq: int
    role: str
    text: str
    body: str | None
    is_redacted: bool

    def is_same(self, row: Row) -> bool:
        """Whether it holds the same content; of a redacted one nobody can tell, so it does."""
        said = (self.role, self.text, self.body)
        return self.is_redacted or said == (row.role, row.text, row.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A session, and what stands in it under one client_id."""

    session_pk: int
    epoch: int
    first_seq: int
    is_archived: bool
    running: str | None
    waiting: int
    is_overdue: bool
    """The running turn's lease has ended."""
    turn: FoundTurn | None
    rows: list[FoundRow]

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs or waits."""
        return self.running is not None or self.waiting > 0

    def check_replay(self, rows: Sequence[Row]) -> None:
        """See that the write that was done before is this one. Raises HistoryCleared, Conflict."""
        if self.rows[0].seq < self.first_seq:
            raise HistoryCleared
        if len(rows) != len(self.rows):
            raise Conflict
        if not all(old.is_same(new) for old, new in zip(self.rows, rows, strict=True)):
            raise Conflict

    def check_open(self, epoch: int | None) -> None:
        """Raises HistoryCleared, Archived."""
        if epoch is not None and epoch != self.epoch:
            raise HistoryCleared
        if self.is_archived:
            raise Archived


def explain(scope: str, key: str, client_id: str) -> Found:
    """What stands at this address and under this client_id, in one statement.

    Raises NotFound, for a removed or expired session too.
    """
    connection = database()
    quote = connection.ops.quote_name
    clock = CLOCK[connection.vendor].replace("%", "%%")
    session, message, turn = (quote(m._meta.db_table) for m in (Session, Message, Turn))
    goes_on, params = unexpired_sql(connection)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT s.id, s.epoch, s.first_seq, s.archived_at IS NOT NULL, s.running, s.waiting, "  # noqa: S608  # names only
            f"now.status = 'running' AND now.lease_until < {clock}, "
            "own.id, own.status, own.asked, own.user_seq, own.epoch, own.replaces_from, "
            "m.seq, m.role, m.text, m.body, m.redacted "
            f"FROM (SELECT * FROM {session} WHERE scope = %s AND {quote('key')} = %s "
            f"AND removed_at IS NULL AND {goes_on}) s "
            f"LEFT JOIN {message} f ON f.session_id = s.id AND f.client_id = %s "
            f"LEFT JOIN {message} m ON m.session_id = s.id "
            "AND m.seq >= f.seq AND m.seq < f.seq + f.batch "
            f"LEFT JOIN {turn} own ON own.session_id = s.id AND own.client_id = %s "
            f"LEFT JOIN {turn} now ON now.session_id = s.id AND now.client_id = s.running "
            "ORDER BY m.seq",
            [scope, key, *params, client_id, client_id],
        )
        found = cursor.fetchall()
    if not found:
        raise NotFound
    head = found[0]
    return Found(
        session_pk=head[0],
        epoch=head[1],
        first_seq=head[2],
        is_archived=bool(head[3]),
        running=head[4],
        waiting=head[5],
        is_overdue=bool(head[6]),
        turn=None if head[7] is None else FoundTurn(*head[7:13]),
        rows=[FoundRow(*row[13:18]) for row in found if row[13] is not None],
    )


def is_stored(session_pk: int, client_id: str) -> bool:
    """Whether a duplicate is of this client_id; if not, it is of a number."""
    return Message.stored.filter(session=session_pk, client_id=client_id).exists()


def damaged(session_pk: int) -> MemoryUnavailable:
    """The error for a session that refuses rows though nothing is in their way; sounds the alarm.

    Its counter has fallen behind its rows, most likely. Trying again is in vain.
    """
    logger.critical(
        "session %s takes no rows though nothing is in their way; "
        "`manage.py chatmemory_check --session %s --fix` repairs what can be",
        session_pk,
        session_pk,
    )
    return MemoryUnavailable("The session is damaged; chatmemory_check tells an operator how.")
