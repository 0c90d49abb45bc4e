"""Findings: what is damaged, made sure of under the lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from chatmemory.errors import MemoryUnavailable, NotFound
from chatmemory.models import Session
from chatmemory.services.actors import Actor
from chatmemory.services.audit import record
from chatmemory.services.faults import durably
from chatmemory.services.locks import lock_pk, unit
from chatmemory.services.news import tell

LISTED = 100
"""How many findings of one kind are named of a session; the next one says that there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One damage, in words that hold nothing of what was said."""

    code: str
    """A column of the session, or one of gap, double, below, removed, batch, user_row, overdue,
    stray_turn, unreadable, readable, call, result, orphans, unchecked."""
    session_pk: int
    sentence: str
    from_seq: int | None = None
    to_seq: int | None = None
    is_fixable: bool = False
    is_fixed: bool = False


def at(code: str, session_pk: int, seqs: Any, sentence: str) -> Iterator[Finding]:
    """A finding for each of these numbers."""
    found = (
        Finding(
            code=code,
            session_pk=session_pk,
            sentence=sentence.format(seq),
            from_seq=seq,
            to_seq=seq,
        )
        for seq in seqs[: LISTED + 1]
    )
    yield from limited(found, code, session_pk)


def limited(found: Iterable[Finding], code: str, session_pk: int) -> Iterator[Finding]:
    for place, finding in enumerate(found):
        if place == LISTED:
            more = f"There are more of these; {LISTED} are named."
            yield Finding(code=code, session_pk=session_pk, sentence=more)
            return
        yield finding


def under_lock(session_pk: int, look: Callable[[Session], list[Finding]]) -> list[Finding]:
    """What `look` finds while nobody else writes; nothing if the session is gone."""

    def work() -> list[Finding]:
        with unit():
            return look(lock_pk(session_pk))

    try:
        return durably(work, is_repeatable=True)
    except NotFound:
        return []
    except MemoryUnavailable:
        sentence = "There may be damage, but the session's lock could not be had to make sure."
        return [Finding(code="unchecked", session_pk=session_pk, sentence=sentence)]


def fixed(session: Session, found: list[Finding], by: Actor) -> list[Finding]:
    """The findings after a repair, which is written down. Needs the lock."""
    counts = Counter(finding.code for finding in found if finding.is_fixable)
    record(session, "repair", by, "", **counts)
    tell(session.pk)
    return [replace(finding, is_fixed=finding.is_fixable) for finding in found]
