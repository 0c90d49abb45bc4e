"""Find the reason why a write was refused, or the earlier write with the same client_id."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from chatmemory import codec
from chatmemory.codec import Row
from chatmemory.database.faults import write_connection
from chatmemory.database.sql import with_names
from chatmemory.errors import Archived, Conflict, HistoryCleared, MemoryUnavailable, NotFound
from chatmemory.models import CLOCK, Message, Session, Turn, unexpired_sql

logger = logging.getLogger(__name__)

# One statement, so that its parts are of one moment: with two, a turn that another process admits
# between them could be reported as busy to its own repeat. It takes no lock, so its answer may be
# outdated when it arrives; the caller then repeats the write.
#
# The session is selected in a subquery because `unexpired` names columns without their table, and
# other tables here have columns of the same name.
#
# Only the first row of a batch has its client_id; `batch` is the number of its rows. A turn that
# was returned to the queue is still in `running`, but has no lease.
_READ_STATE = """\
SELECT s.id, s.epoch, s.first_seq, s.archived_at IS NOT NULL, s.running, s.waiting,
    running.status = 'running' AND running.lease_until < {clock},
    earlier.id, earlier.status, earlier.asked,
    earlier.user_seq, earlier.epoch, earlier.replaces_from,
    m.seq, m.role, m.text, m.body, m.redacted
FROM (
    SELECT *
    FROM {sessions}
    WHERE scope = %(scope)s AND {key} = %(key)s AND removed_at IS NULL AND {unexpired}
) s
LEFT JOIN {messages} first ON first.session_id = s.id AND first.client_id = %(client_id)s
LEFT JOIN {messages} m
    ON m.session_id = first.session_id AND m.seq >= first.seq AND m.seq < first.seq + first.batch
LEFT JOIN {turns} earlier ON earlier.session_id = s.id AND earlier.client_id = %(client_id)s
LEFT JOIN {turns} running ON running.session_id = s.id AND running.client_id = s.running
ORDER BY m.seq"""


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """The turn that has a client_id."""

    pk: int
    status: str
    asked: str
    user_seq: int | None
    epoch: int
    replaces_from: int | None

    @property
    def is_deferred(self) -> bool:
        """Whether it is no turn: Note [Deferred messages]."""
        return self.asked.startswith(codec.BATCH_BEGIN)


@dataclass(frozen=True, slots=True)
class EarlierRow:
    """A row that a write with a client_id stored."""

    seq: int
    role: str
    text: str
    body: str | None
    is_redacted: bool

    def is_same(self, row: Row) -> bool:
        """Whether both rows have the same content; a redacted row counts as the same."""
        content = (self.role, self.text, self.body)
        return self.is_redacted or content == (row.role, row.text, row.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """A session, and the rows and turn in it that have one client_id."""

    session_pk: int
    epoch: int
    first_seq: int
    is_archived: bool
    running: str | None
    """The client_id of the running turn."""
    waiting: int
    """The number of waiting turns."""
    is_overdue: bool
    """Whether the lease of the running turn has expired."""
    turn: EarlierTurn | None
    rows: list[EarlierRow]

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs or waits."""
        return self.running is not None or self.waiting > 0

    def check_replay(self, rows: Sequence[Row]) -> None:
        """Check that the earlier write stored the same rows. Raises HistoryCleared, Conflict."""
        if self.rows[0].seq < self.first_seq:
            raise HistoryCleared
        if len(rows) != len(self.rows):
            raise Conflict
        if not all(old.is_same(new) for old, new in zip(self.rows, rows, strict=True)):
            raise Conflict

    def check_open(self, epoch: int | None) -> None:
        """Check that the session accepts a write. Raises HistoryCleared, Archived."""
        if epoch is not None and epoch != self.epoch:
            raise HistoryCleared
        if self.is_archived:
            raise Archived


def read_session_state(scope: str, key: str, client_id: str) -> SessionState:
    """Read a session and the earlier write with this client_id, in one statement.

    Raises NotFound, also for a removed or expired session.
    """
    connection = write_connection()
    quote = connection.ops.quote_name
    unexpired, parameters = with_names(*unexpired_sql(connection), "unexpired")
    sql = _READ_STATE.format(
        clock=CLOCK[connection.vendor].replace("%", "%%"),
        sessions=quote(Session._meta.db_table),
        messages=quote(Message._meta.db_table),
        turns=quote(Turn._meta.db_table),
        key=quote("key"),
        unexpired=unexpired,
    )
    parameters |= {"scope": scope, "key": key, "client_id": client_id}
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found = cursor.fetchall()
    if not found:
        raise NotFound
    session_pk, epoch, first_seq, is_archived, running, waiting, is_overdue = found[0][:7]
    turn = found[0][7:13]
    rows = [row[13:] for row in found]
    return SessionState(
        session_pk=session_pk,
        epoch=epoch,
        first_seq=first_seq,
        is_archived=bool(is_archived),
        running=running,
        waiting=waiting,
        is_overdue=bool(is_overdue),
        turn=None if turn[0] is None else EarlierTurn(*turn),
        rows=[EarlierRow(*row) for row in rows if row[0] is not None],
    )


def is_client_id_stored(session_pk: int, client_id: str) -> bool:
    """Whether a row has this client_id; if not, a duplicate key is due to a duplicate seq."""
    # A query, since both constraints have the same error code, and texts differ between databases.
    return Message.stored.filter(session=session_pk, client_id=client_id).exists()


def report_damage(session_pk: int) -> MemoryUnavailable:
    """Log that a session is damaged; return the error for the caller."""
    # Not retried: the counter is probably behind the rows, so that each new row gets an existing
    # seq.
    logger.critical(
        "session %s is damaged and accepts no messages; "
        "repair it with `manage.py chatmemory_check --session %s --fix`",
        session_pk,
        session_pk,
    )
    return MemoryUnavailable("The session is damaged. Ask an operator to run chatmemory_check.")
