"""Findings of the integrity check, and their confirmation under the session's lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from chatmemory.access.actors import Actor
from chatmemory.database.after_commit import announce_change
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import MemoryUnavailable, NotFound
from chatmemory.models import AuditAction, Session
from chatmemory.services.audit.entries import record

MAX_LISTED = 100
"""Findings of one code listed for each session; one more finding states that there are others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A damaged session, turn or row, described without message content."""

    code: str
    """A column of the session, or one of table, gap, double, below, removed, batch, user_row,
    overdue, stray_turn, feedback, reply, derived, unreadable, readable, call, result, orphans,
    unchecked."""
    session_pk: int | None
    """None for a table."""
    sentence: str
    from_seq: int | None = None
    to_seq: int | None = None
    is_fixable: bool = False
    is_fixed: bool = False


def findings_at(code: str, session_pk: int, seqs: Any, sentence: str) -> Iterator[Finding]:
    """Yield a finding for each of these numbers, up to the limit."""
    found = (
        Finding(
            code=code,
            session_pk=session_pk,
            sentence=sentence.format(seq),
            from_seq=seq,
            to_seq=seq,
        )
        for seq in seqs[: MAX_LISTED + 1]
    )
    yield from limited(found, code, session_pk)


def limited(found: Iterable[Finding], code: str, session_pk: int) -> Iterator[Finding]:
    """Yield the first findings, and one that states that there are more."""
    for index, finding in enumerate(found):
        if index == MAX_LISTED:
            more = f"There are more of these; only the first {MAX_LISTED} are listed."
            yield Finding(code=code, session_pk=session_pk, sentence=more)
            return
        yield finding


def confirm_locked(session_pk: int, check: Callable[[Session], list[Finding]]) -> list[Finding]:
    """Call `check` with the locked session and return its findings.

    See Note [Recheck under the lock]. Returns an empty list if the session was deleted, and a
    finding `unchecked` if the lock is unavailable.
    """
    try:
        return _call_locked(session_pk, check)
    except NotFound:
        return []
    except MemoryUnavailable:
        sentence = "The session may be damaged, but its lock was not available to confirm it."
        return [Finding(code="unchecked", session_pk=session_pk, sentence=sentence)]


@retried(is_repeatable=True)
def _call_locked(session_pk: int, check: Callable[[Session], list[Finding]]) -> list[Finding]:
    with locked_transaction():
        return check(lock_pk(session_pk))


def record_repair(session: Session, found: list[Finding], by: Actor) -> list[Finding]:
    """Record a repair in the audit and return the findings with `is_fixed`. Needs the lock."""
    counts = Counter(finding.code for finding in found if finding.is_fixable)
    record(session, AuditAction.REPAIR, by, "", **counts)
    announce_change(session.pk)
    return [replace(finding, is_fixed=finding.is_fixable) for finding in found]
