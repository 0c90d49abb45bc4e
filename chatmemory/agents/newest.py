"""Read and withdraw the newest messages of a session that have a value, such as an item."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, TypeVar

from django.db.models import OuterRef

from chatmemory.access.actors import Actor
from chatmemory.access.addresses import Address, address_lane
from chatmemory.database.locks import locked_transaction
from chatmemory.database.pool import in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import Busy, HistoryCleared
from chatmemory.models import AuditAction, Message, StoredMessage, is_current
from chatmemory.services.audit.entries import check_reason, record
from chatmemory.services.removal.withdrawal import withdraw_rows
from chatmemory.services.sessions import MAX_PAGE, read_history, read_page, read_superseded

T = TypeVar("T")


def read_newest(
    value_of: Callable[[StoredMessage], T | None],
    *,
    session_key: str,
    by: Actor,
    scope: str | None = None,
    limit: int | None,
) -> tuple[int, list[T]]:
    """Return the epoch, and the values of the newest `limit` messages that have one, in order.

    A limit of None returns all, of 0 or less none. Superseded messages are omitted.
    Raises NotFound, MemoryUnavailable.
    """
    at: dict[str, Any] = {"session_key": session_key, "by": by, "scope": scope}
    if limit is None:
        page = read_history(**at, superseded=False)
        return page.head.epoch, _values(value_of, page.rows, set())
    size = min(max(limit, 1), MAX_PAGE)
    page = read_page(**at, limit=size)
    ranges = read_superseded(head=page.head)
    omitted = {seq for low, high in ranges for seq in range(low, high + 1)}
    epoch, values = page.head.epoch, _values(value_of, page.rows, omitted)
    while page.rows and len(values) < limit:
        size = min(4 * size, MAX_PAGE)
        page = read_page(**at, before=page.rows[0].seq, limit=size)
        values[:0] = _values(value_of, page.rows, omitted)
    return epoch, values[-limit:] if limit > 0 else []


def _values(
    value_of: Callable[[StoredMessage], T | None],
    rows: Iterable[StoredMessage],
    omitted: Container[int],
) -> list[T]:
    found = (value_of(row) for row in rows if row.seq not in omitted)
    return [value for value in found if value is not None]


@retried(is_repeatable=False)
def withdraw_newest(
    value_of: Callable[[Message], T | None],
    *,
    session_key: str,
    by: Actor,
    reason: str,
    scope: str | None = None,
    epoch: int | None = None,
) -> T | None:
    """Withdraw the newest message that has a value, and return the value; None without one.

    Messages above it that have none are withdrawn with it. With `epoch`, nothing is withdrawn after
    a clear or purge. `restore_session` undoes it by its audit entry.
    Raises NotFound, HistoryCleared, Busy, Held, BadInput, MemoryUnavailable.
    """
    check_reason(reason)
    with locked_transaction():
        session = Address(session_key, by, scope).lock()
        if epoch not in (None, session.epoch):
            raise HistoryCleared
        if session.running is not None or session.waiting:
            raise Busy(turn=session.running)
        rows = Message.objects.filter(
            is_current(OuterRef("session_id"), OuterRef("seq"), OuterRef("seq")), session=session
        )
        high = 0
        for row in rows.order_by("-seq").iterator(chunk_size=10):
            high = high or row.seq
            if (value := value_of(row)) is not None:
                break
        else:
            return None
        withdraw_rows(session, row.seq, high)
        record(
            session,
            AuditAction.WITHDRAW,
            by,
            reason,
            from_seq=row.seq,
            to_seq=high,
            messages=high - row.seq + 1,
        )
        return value


aread_newest = in_pool(read_newest)
awithdraw_newest = in_pool(withdraw_newest, lane=lambda _, **call: address_lane(**call))
