"""Writes the blocks of sessions. See Note [Search blocks]."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import F, Sum, TextChoices
from django.db.models.functions import Greatest
from django.utils.translation import gettext_lazy as _

from chatmemory.database.batches import BATCH_SESSIONS, Progress, batches, count_of
from chatmemory.database.retries import durably, retried
from chatmemory.models import Session
from chatmemory.search.blocks import pack
from chatmemory.search.models import BLOCK_ROWS, SearchBlock, first_of, number_of
from chatmemory.search.reading import block_rows, indexable
from chatmemory.search.searching import analyzer
from chatmemory.services.derived.writing import Seen, seen_of, store
from chatmemory.services.maintenance.records import recorded

MIN_ROWS = 32
"""Messages without a block that are worth to write the last block again: it is 30 KB."""

MAX_ATTEMPTS = 3
"""How often a session is indexed again that a removal or a thumb changed meanwhile."""


class Task(TextChoices):
    """The maintenance task of this app."""

    SEARCH = "search", _("search index")


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """The result of an index run."""

    sessions: int
    """Sessions of which blocks were written."""
    blocks: int
    is_complete: bool
    """Whether no session was skipped because it changed repeatedly."""


class _Range(NamedTuple):
    """The messages of a block."""

    low: int
    high: int


def index_all(*, progress: Progress | None = None) -> Indexed:
    """Write the missing and outdated blocks of all sessions; it can be stopped and run again.

    Raises MemoryUnavailable.
    """
    sessions = Session.objects.active()
    total = count_of(sessions) if progress else None
    done = written = blocks = 0
    is_complete = True
    with recorded(Task.SEARCH) as outcome:
        for pks in batches(sessions, BATCH_SESSIONS):
            for pk in due_sessions(pks):
                result = index_session(pk)
                is_complete &= result.is_complete
                blocks += result.blocks
                written += result.blocks > 0
            done += len(pks)
            if progress:
                progress(done, total)
        outcome.counts = {"sessions": written, "blocks": blocks}
        outcome.is_ok = is_complete
    return Indexed(sessions=written, blocks=blocks, is_complete=is_complete)


def index_session(session_pk: int, *, min_rows: int = 1, deadline: float | None = None) -> Indexed:
    """Write the missing and outdated blocks of a session that is neither purged nor expired.

    The last block is written only if it then has `min_rows` messages more. After `deadline`, by the
    monotonic clock, no further block is written. Raises MemoryUnavailable.
    """
    blocks = 0
    for _attempt in range(MAX_ATTEMPTS):
        session = durably(
            lambda: Session.objects.active().filter(pk=session_pk).first(), is_repeatable=True
        )
        if session is None:
            return Indexed(sessions=0, blocks=blocks, is_complete=True)
        seen = seen_of(session)  # before the messages are read
        is_stored = True
        for missing in _missing(session, min_rows):
            if deadline is not None and time.monotonic() > deadline:
                return Indexed(sessions=1, blocks=blocks, is_complete=False)
            is_stored = _write(seen, missing)
            if not is_stored:
                break
            blocks += 1
        if is_stored:
            return Indexed(sessions=int(blocks > 0), blocks=blocks, is_complete=True)
    return Indexed(sessions=int(blocks > 0), blocks=blocks, is_complete=False)


def _missing(session: Session, min_rows: int) -> list[_Range]:
    """Return the messages of the blocks that must be written, newest first."""
    if session.last_seq < session.first_seq:
        return []
    found = SearchBlock.objects.filter(session=session, analyzer=analyzer().name)
    stored = {
        number: _Range(low, high)
        for number, low, high in durably(
            lambda: list(found.values_list("number", "low", "high")), is_repeatable=True
        )
    }
    missing = []
    last = number_of(session.last_seq)
    for number in range(last, number_of(session.first_seq) - 1, -1):
        low = max(first_of(number), session.first_seq)
        high = min(first_of(number + 1) - 1, session.last_seq)
        block = stored.get(number)
        if block is None:
            new = high - low + 1
        elif block.low > low:  # a restore has shown older messages
            new = BLOCK_ROWS
        else:
            new = high - block.high
        if new >= (min_rows if number == last else 1):
            missing.append(_Range(low, high))
    return missing


def _write(seen: Seen, missing: _Range) -> bool:
    """Write a block; return False if the session changed since `seen`."""
    used, number = analyzer(), number_of(missing.low)
    of_range = {"session": seen.session_pk, "seq__gte": missing.low, "seq__lte": missing.high}
    rows = durably(lambda: list(indexable(**of_range)), is_repeatable=True)
    packed = pack(block_rows(rows, used))
    block = SearchBlock(
        low=missing.low,
        high=missing.high,
        number=number,
        analyzer=used.name,
        postings=packed.postings,
        words=packed.words,
    )
    # `store` replaces what overlaps. This one has only hidden messages, and the same number.
    hidden = SearchBlock.objects.filter(
        session=seen.session_pk, number=number, high__lt=missing.low
    )
    durably(hidden.delete, is_repeatable=True)
    return store(seen, [block], replace=True)


@retried(is_repeatable=True)
def due_sessions(session_pks: Sequence[int]) -> list[int]:
    """Return the sessions with a message that has no block of the current analyzer."""
    low = Greatest(F("low"), F("session__first_seq"))
    blocks = SearchBlock.objects.filter(
        session__in=session_pks,
        analyzer=analyzer().name,
        high__gte=F("session__first_seq"),
    )
    # Blocks of a session do not overlap.
    covered = dict(blocks.values_list("session").annotate(rows=Sum(F("high") - low + 1)))
    sessions = Session.objects.active().filter(pk__in=session_pks, last_seq__gte=F("first_seq"))
    found = sessions.order_by("pk").values_list("pk", "first_seq", "last_seq")
    return [pk for pk, first, last in found if covered.get(pk, 0) < last - first + 1]
