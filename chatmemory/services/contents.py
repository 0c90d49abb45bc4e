"""What stands in the rows of a session: can it be read, and is each tool call answered?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from django.db.models import Q

from chatmemory import codec
from chatmemory.models import Message, Session
from chatmemory.services.actors import Actor
from chatmemory.services.findings import Finding, at, fixed, under_lock

ROWS = 100
"""Bodies read at a time."""


def untold(of: str = "") -> Q:
    """Rows that can be more than a role and a text; `of` is the way to their columns."""
    is_more = Q((f"{of}body__isnull", False)) | ~Q((f"{of}role__in", codec.ROLES))
    return is_more | Q((f"{of}redacted", True)) | Q((f"{of}quarantined", True))


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


def _telling(session_pk: int, low: int, high: int | None = None) -> Iterator[list[_Row]]:
    """The rows that can be more than text, and users' rows; in order of seq, some at a time."""
    rows = Message.stored.filter(untold() | Q(role=Message.Role.USER), session_id=session_pk)
    if high is not None:
        rows = rows.filter(seq__lte=high)
    columns = rows.order_by("seq").values_list(*_Row._fields)
    while page := [_Row(*values) for values in columns.filter(seq__gte=low)[:ROWS]]:
        yield page
        low = page[-1].seq + 1


class _Segment:
    """Rows that stand together: a turn's, or from a user's row up to the next."""

    def __init__(self, session_pk: int, first: _Row) -> None:
        self.session_pk = session_pk
        self.begin = first.seq
        self.turn = first.turn
        self.called: set[str] = set()
        self.unanswered: dict[str, int] = {}
        self.uncalled: list[int] = []
        self.is_clear = True

    def is_ended_by(self, row: _Row) -> bool:
        """A run may store rows of a user too: they don't begin another turn."""
        is_users = row.role == Message.Role.USER and row.turn in (None, row.seq)
        return is_users or row.turn != self.turn

    def take(self, row: _Row, plain: dict[str, object]) -> None:
        """Note the calls and the results of a row."""
        # What stood in a row that can't be read, or in a redacted one, nobody can tell.
        self.is_clear = self.is_clear and not row.redacted and "quarantined" not in plain
        self.called.update(codec.call_ids(plain))
        # An invalid call may stay without a result, and so may one of a message that broke off:
        # no row can be added after it later, and the window gives the model a result.
        if row.status == Message.Status.COMPLETE:
            self.unanswered.update(dict.fromkeys(codec.call_ids(plain, "tool_calls"), row.seq))
        answered = codec.answered_call(plain)
        if answered is None:
            return
        self.unanswered.pop(answered, None)
        if answered not in self.called and not self._is_called_before(row.seq, answered):
            self.uncalled.append(row.seq)

    def findings(self) -> list[Finding]:
        """The pairs that are broken."""
        return [*self._open_calls(), *self._lone_results()] if self.is_clear else []

    def findings_so_far(self, *, is_running: bool) -> list[Finding]:
        """The same of the last segment, where results may still come.

        Not those of a turn that ended; but a caller that has no turn may be at work on a tool.
        """
        is_open = is_running or self.turn is None
        return list(self._lone_results()) if self.is_clear and is_open else self.findings()

    def _open_calls(self) -> Iterator[Finding]:
        seqs = sorted(set(self.unanswered.values()))
        return at("call", self.session_pk, seqs, "A tool call in row {} has no result.")

    def _lone_results(self) -> Iterator[Finding]:
        return at("result", self.session_pk, self.uncalled, "Row {} answers no tool call.")

    def _is_called_before(self, seq: int, call_id: str) -> bool:
        return Message.stored.filter(
            session_id=self.session_pk,
            seq__lt=seq,
            role=Message.Role.ASSISTANT,
            body__contains=codec.dump_json(call_id),
        ).exists()


def check_rows(session_pk: int, floor: int, repair_by: Actor | None) -> Iterator[Finding]:
    """Rows wrongly marked as readable or not, and above the floor tool calls without result."""
    segment: _Segment | None = None
    for page in _telling(session_pk, low=1):
        wrong = []
        for row in page:
            plain = row.plain()
            if ("quarantined" in plain) != row.quarantined:
                wrong.append(row.seq)
            if row.seq < floor:
                continue
            if segment is None or segment.is_ended_by(row):
                yield from _second_look_at_pairs(segment, row.seq - 1)
                segment = _Segment(session_pk, row)
            segment.take(row, plain)
        if wrong:
            yield from _second_look_at_rows(session_pk, wrong, repair_by)
    yield from _second_look_at_pairs(segment, None)


def _second_look_at_rows(
    session_pk: int, seqs: list[int], repair_by: Actor | None
) -> list[Finding]:
    def look(session: Session) -> list[Finding]:
        rows = Message.stored.filter(session=session, seq__in=seqs).order_by("seq")
        read = map(_Row._make, rows.values_list(*_Row._fields))
        wrong = [row for row in read if row.is_unreadable() != row.quarantined]
        found = [_wrong_mark(session.pk, row) for row in wrong]
        if repair_by is None or not found:
            return found
        revision = session.revision + 1
        for mark in (True, False):
            seqs_to_mark = [row.seq for row in wrong if row.quarantined != mark]
            Message.stored.filter(session=session, seq__in=seqs_to_mark).update(
                quarantined=mark, revision=revision
            )
        Session.objects.filter(pk=session.pk).update(revision=revision, rows_revision=revision)
        return fixed(session, found, repair_by)

    return under_lock(session_pk, look)


def _wrong_mark(session_pk: int, row: _Row) -> Finding:
    sentence = f"Row {row.seq} can't be read, and isn't marked as such."
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


def _second_look_at_pairs(segment: _Segment | None, end: int | None) -> list[Finding]:
    """Look again at a segment up to `end`, or None for the end of the session."""
    if segment is None or not segment.findings():
        return []
    is_last = end is None
    running = Session.objects.filter(pk=segment.session_pk, running__isnull=False)
    if is_last and not segment.findings_so_far(is_running=running.exists()):
        return []

    def look(session: Session) -> list[Finding]:
        again: _Segment | None = None
        for page in _telling(session.pk, max(segment.begin, session.first_seq), end):
            for row in page:
                if again is not None and again.is_ended_by(row):
                    return again.findings()
                again = again or _Segment(session.pk, row)
                again.take(row, row.plain())
        if again is None:
            return []
        is_running = session.running is not None
        return again.findings_so_far(is_running=is_running) if is_last else again.findings()

    return under_lock(segment.session_pk, look)
