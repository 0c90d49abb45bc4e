"""Check that the rows of a session are readable and that each tool call has a result."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from django.db.models import Q

from chatmemory import codec
from chatmemory.access.actors import Actor
from chatmemory.models import Message, Session
from chatmemory.services.derived.removal import forget_words
from chatmemory.services.integrity.findings import (
    Finding,
    confirm_locked,
    findings_at,
    record_repair,
)

PAGE_ROWS = 100
"""Rows read in one query, with their bodies."""


def needs_check(prefix: str = "") -> Q:
    """Return a filter for rows that may be more than a role and a text.

    `prefix` is the lookup path to the columns of the row, such as `messages__`.
    """
    has_body = Q((f"{prefix}body__isnull", False))
    is_unknown_role = ~Q((f"{prefix}role__in", codec.ROLES))
    is_marked = Q((f"{prefix}redacted", True)) | Q((f"{prefix}quarantined", True))
    return has_body | is_unknown_role | is_marked


class _Row(NamedTuple):
    seq: int
    role: str
    turn: int | None
    body: str | None
    redacted: bool
    quarantined: bool
    status: str

    def plain(self) -> dict[str, object]:
        return codec.decode(self.role, "", self.body)

    def is_unreadable(self) -> bool:
        return "quarantined" in self.plain()


def _row_pages(session_pk: int, low: int, high: int | None = None) -> Iterator[list[_Row]]:
    """Yield pages of users' rows and of rows that may be more than text, in ascending order."""
    rows = Message.stored.filter(needs_check() | Q(role=Message.Role.USER), session_id=session_pk)
    if high is not None:
        rows = rows.filter(seq__lte=high)
    columns = rows.order_by("seq").values_list(*_Row._fields)
    while page := [_Row(*values) for values in columns.filter(seq__gte=low)[:PAGE_ROWS]]:
        yield page
        low = page[-1].seq + 1


class _Segment:
    """Rows in which each call needs its result: a turn's, or from a user's row to the next."""

    def __init__(self, session_pk: int, first: _Row) -> None:
        self.session_pk = session_pk
        self.from_seq = first.seq
        self.turn = first.turn
        self.called: set[str] = set()
        self.unanswered: dict[str, int] = {}
        self.uncalled: list[int] = []
        self.is_clear = True

    def is_ended_by(self, row: _Row) -> bool:
        """Return whether the row begins another segment; users' rows that a run stores do not."""
        is_users = row.role == Message.Role.USER and row.turn in (None, row.seq)
        return is_users or row.turn != self.turn

    def add(self, row: _Row, plain: dict[str, object]) -> None:
        """Collect the calls and the results of a row."""
        # A redacted or unreadable row may have contained any call or result.
        self.is_clear = self.is_clear and not row.redacted and "quarantined" not in plain
        self.called.update(codec.call_ids(plain))
        # Invalid calls need no result, nor do the calls of an incomplete message: no row can follow
        # it later, and the window adds a result for the model.
        if row.status == Message.Status.COMPLETE:
            self.unanswered.update(dict.fromkeys(codec.call_ids(plain, "tool_calls"), row.seq))
        answered = codec.answered_call(plain)
        if answered is None:
            return
        self.unanswered.pop(answered, None)
        if answered not in self.called and not self._is_called_before(row.seq, answered):
            self.uncalled.append(row.seq)

    def findings(self) -> list[Finding]:
        """Return calls without a result and results without a call."""
        return [*self._open_calls(), *self._lone_results()] if self.is_clear else []

    def findings_at_end(self, *, is_running: bool) -> list[Finding]:
        """Return the findings of the last segment, without calls that may still get a result."""
        # A caller without a turn may still execute a tool; an ended turn stores no more results.
        is_open = is_running or self.turn is None
        return list(self._lone_results()) if self.is_clear and is_open else self.findings()

    def _open_calls(self) -> Iterator[Finding]:
        seqs = sorted(set(self.unanswered.values()))
        return findings_at("call", self.session_pk, seqs, "A tool call in row {} has no result.")

    def _lone_results(self) -> Iterator[Finding]:
        sentence = "Row {} is the result of no tool call."
        return findings_at("result", self.session_pk, self.uncalled, sentence)

    def _is_called_before(self, seq: int, call_id: str) -> bool:
        return Message.stored.filter(
            session_id=self.session_pk,
            seq__lt=seq,
            role=Message.Role.ASSISTANT,
            body__contains=codec.dump_json(call_id),
        ).exists()


def check_rows(session_pk: int, floor: int, repair_by: Actor | None) -> Iterator[Finding]:
    """Yield rows with a wrong `quarantined` flag and, from `floor` on, broken tool calls."""
    segment: _Segment | None = None
    for page in _row_pages(session_pk, low=1):
        wrong = []
        for row in page:
            plain = row.plain()
            if ("quarantined" in plain) != row.quarantined:
                wrong.append(row.seq)
            if row.seq < floor:
                continue
            if segment is None or segment.is_ended_by(row):
                yield from _confirm_pairs(segment, row.seq - 1)
                segment = _Segment(session_pk, row)
            segment.add(row, plain)
        if wrong:
            check = partial(_recheck_flags, seqs=wrong, repair_by=repair_by)
            yield from confirm_locked(session_pk, check)
    yield from _confirm_pairs(segment, None)


def _recheck_flags(session: Session, *, seqs: list[int], repair_by: Actor | None) -> list[Finding]:
    """Return the wrong flags of these rows, and correct them for `repair_by`. Needs the lock."""
    rows = Message.stored.filter(session=session, seq__in=seqs).order_by("seq")
    read = map(_Row._make, rows.values_list(*_Row._fields))
    wrong = [row for row in read if row.is_unreadable() != row.quarantined]
    found = [_wrong_flag(session.pk, row) for row in wrong]
    if repair_by is None or not found:
        return found
    revision = session.revision + 1
    for flag in (True, False):
        seqs_to_flag = [row.seq for row in wrong if row.quarantined != flag]
        Message.stored.filter(session=session, seq__in=seqs_to_flag).update(
            quarantined=flag, revision=revision
        )
    Session.objects.filter(pk=session.pk).update(revision=revision, rows_revision=revision)
    for row in wrong:
        forget_words(session.pk, row.seq, row.seq)
    return record_repair(session, found, repair_by)


def _wrong_flag(session_pk: int, row: _Row) -> Finding:
    sentence = f"Row {row.seq} cannot be read, but is not marked as unreadable."
    if row.quarantined:
        sentence = f"Row {row.seq} is marked as unreadable, but can be read."
    return Finding(
        code="readable" if row.quarantined else "unreadable",
        session_pk=session_pk,
        sentence=sentence,
        from_seq=row.seq,
        to_seq=row.seq,
        is_fixable=True,
    )


def _confirm_pairs(segment: _Segment | None, end: int | None) -> list[Finding]:
    """Recheck a segment with findings up to row `end`; None means the end of the session."""
    if segment is None or not segment.findings():
        return []
    is_last = end is None
    running = Session.objects.filter(pk=segment.session_pk, running__isnull=False)
    if is_last and not segment.findings_at_end(is_running=running.exists()):
        return []
    check = partial(_recheck_pairs, low=segment.from_seq, end=end)
    return confirm_locked(segment.session_pk, check)


def _recheck_pairs(session: Session, *, low: int, end: int | None) -> list[Finding]:
    """Return the broken pairs of the segment that begins at row `low`. Needs the lock."""
    segment: _Segment | None = None
    for page in _row_pages(session.pk, max(low, session.first_seq), end):
        for row in page:
            if segment is not None and segment.is_ended_by(row):
                return segment.findings()
            segment = segment or _Segment(session.pk, row)
            segment.add(row, row.plain())
    if segment is None:
        return []
    if end is None:
        return segment.findings_at_end(is_running=session.running is not None)
    return segment.findings()
