"""Find damaged sessions, and repair what can be derived from their rows and turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

from django.db.models import Count, Exists, F, Max, Min, OuterRef, Q, QuerySet, Sum, Window
from django.db.models.functions import Lead

from chatmemory.access.actors import Actor, importing_scope, purged_scope
from chatmemory.codec import check_value
from chatmemory.database.batches import Progress, batches, check_size, count_of, reported
from chatmemory.database.locks import lock_pk
from chatmemory.errors import NotFound
from chatmemory.models import (
    DatabaseNow,
    Feedback,
    Message,
    Session,
    SessionNote,
    SessionQuerySet,
    SessionTag,
    Turn,
    WithdrawnRange,
)
from chatmemory.services.derived.removal import damaged_ranges
from chatmemory.services.integrity.feedback import (
    repair_replies,
    stray_feedback,
    unfounded_replies,
    unshown_feedback,
)
from chatmemory.services.integrity.findings import (
    MAX_LISTED,
    Finding,
    confirm_locked,
    findings_at,
    limited,
    record_repair,
)
from chatmemory.services.integrity.rows import check_rows, needs_check
from chatmemory.services.integrity.tables import REMEDY, wrong_tables
from chatmemory.services.maintenance.records import recorded_findings
from chatmemory.services.maintenance.tasks import Task
from chatmemory.services.turns.endings import end_orphaned_turn
from chatmemory.services.turns.recovery import recover_overdue_turn

# Note [Recheck under the lock]
#
# The first check reads many sessions in a few statements, without locks. Each statement sees a
# different moment, so a concurrent write can look like damage. A finding is reported only if a
# second check, under the session's lock, finds it too (`confirm_locked`).

MAX_PK = 2**63 - 1
"""The highest primary key; a database may reject a query for a higher one."""

BATCH_SIZE = 100
"""Default number of sessions checked with one set of statements."""

MAX_TIME_DIFFERENCE = timedelta(minutes=1)
"""The allowed difference of `last_message_at` and the time of the newest row.

A write can wait for the lock between the two readings of the clock.
"""


def check_integrity(
    *,
    session_pk: int | None = None,
    scope: str | None = None,
    repair_by: Actor | None = None,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Iterator[Finding]:
    """Yield the damage of all sessions, of one, or of a scope, including purged sessions.

    `repair_by` repairs the fixable findings of each session under its lock and records an audit
    entry `repair`. A repair adds no text, renumbers nothing and deletes nothing. One set of
    statements reads `batch_size` sessions. `progress` is called with the number of sessions that
    are done, and with their total. If tables do not fit the models, only that is found.

    Raises NotFound if nothing is stored under `session_pk`, and BadInput for a bad `scope`.
    """
    check_size("batch_size", batch_size)
    if scope is not None:
        check_value(scope, "scope")
    if session_pk is not None and not 0 < session_pk <= MAX_PK:
        raise NotFound
    wrong = wrong_tables()
    if wrong:  # the statements below would fail
        sentences = (f"{sentence} {REMEDY}" for sentence in wrong)
        yield from (Finding(code="table", session_pk=None, sentence=one) for one in sentences)
        return
    selected = _checked_sessions(session_pk, scope)
    checked: Iterable[_Facts] = chain.from_iterable(map(_read_facts, batches(selected, batch_size)))
    if progress is not None:
        checked = reported(checked, progress, count_of(selected))
    findings = _check_sessions(checked, session_pk, scope, repair_by)
    if session_pk is None and scope is None:
        findings = recorded_findings(Task.CHECK, findings, lambda finding: finding.is_fixed)
    yield from findings


def _check_sessions(
    checked: Iterable[_Facts],
    session_pk: int | None,
    scope: str | None,
    repair_by: Actor | None,
) -> Iterator[Finding]:
    has_any = False
    for facts in checked:
        has_any = True
        if _is_import(facts):
            continue
        if next(_damage(facts), None) is not None:
            check = partial(_recheck, repair_by=repair_by)
            yield from confirm_locked(facts.pk, check)
        if facts.rows_to_check:
            yield from check_rows(facts.pk, facts.first_seq, repair_by)
    orphans = iter(()) if scope is not None else _orphans(session_pk)
    for finding in orphans:
        has_any = True
        yield finding
    if session_pk is not None and not has_any:
        raise NotFound


def _is_import(facts: _Facts) -> bool:
    """Return whether the import of the session is unfinished; its counters are set at the end."""
    scopes = (facts.scope, facts.removed_scope)
    return any(scope.startswith(importing_scope("")) for scope in scopes)


def _checked_sessions(session_pk: int | None, scope: str | None) -> SessionQuerySet:
    sessions = Session.objects.all()
    if session_pk is not None:
        sessions = sessions.filter(pk=session_pk)
    return sessions if scope is None else sessions.of_scopes(scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Columns of a session, and aggregates of its rows and turns to compare them with."""

    pk: int
    scope: str
    removed_scope: str
    removed_at: datetime | None
    first_seq: int
    last_seq: int
    stored_from: int
    superseded_to: int
    revision: int
    rows_revision: int
    tokens: int
    last_message_at: datetime | None
    rows: int
    numbers: int
    below: int
    """Rows below `stored_from`."""
    lowest: int | None
    highest: int | None
    row_tokens: int | None
    highest_revision: int | None
    newest_at: datetime | None
    redacted: int
    rows_to_check: int
    rated: int
    """Rows that show feedback."""

    running: str | None
    waiting: int
    waiting_turns: int
    active: int
    overdue: int
    stray: int
    superseded: int | None
    """The highest row that a turn supersedes."""
    withdrawn: int
    """The highest row that was withdrawn; 0 without one."""
    has_bad_batch: bool
    has_bad_turn: bool
    has_stray_feedback: bool
    has_bad_replies: bool
    damaged_derived: int
    """Derived rows with an impossible range."""


_OF_SESSION = (
    "pk",
    "scope",
    "removed_scope",
    "removed_at",
    "first_seq",
    "last_seq",
    "stored_from",
    "superseded_to",
    "revision",
    "rows_revision",
    "tokens",
    "last_message_at",
)


def _read_facts(pks: Sequence[int]) -> list[_Facts]:
    """Return the facts of the sessions that exist, in ascending order of their primary keys."""
    sessions = Session.objects.filter(pk__in=pks)
    counted = sessions.values(*_OF_SESSION).annotate(
        rows=Count("messages"),
        numbers=Count("messages__seq", distinct=True),
        below=Count("messages", filter=Q(messages__seq__lt=F("stored_from"))),
        lowest=Min("messages__seq"),
        highest=Max("messages__seq"),
        row_tokens=Sum("messages__tokens"),
        highest_revision=Max("messages__revision"),
        newest_at=Max("messages__created_at"),
        redacted=Count("messages", filter=Q(messages__redacted=True)),
        rows_to_check=Count("messages", filter=needs_check("messages__")),
        rated=Count("messages", filter=Q(messages__feedback__isnull=False)),
    )
    is_named = Q(running__isnull=False, turns__client_id=F("running"))
    is_not_named = Q(running__isnull=True) | ~Q(turns__client_id=F("running"))
    runs = Q(turns__status=Turn.Status.RUNNING)
    is_over = Q(turns__lease_until__lt=DatabaseNow()) | Q(turns__lease_until__isnull=True)
    turns = sessions.values("pk", "running", "waiting").annotate(
        waiting_turns=Count("turns", filter=Q(turns__status=Turn.Status.WAITING) & is_not_named),
        active=Count("turns", filter=Q(turns__status__in=Turn.ACTIVE_STATUSES) & is_named),
        overdue=Count("turns", filter=runs & is_named & is_over),
        stray=Count("turns", filter=runs & is_not_named),
        superseded=Max("turns__replaces_to", filter=Q(turns__user_seq__isnull=False)),
    )
    turns_of = {values["pk"]: values for values in turns}
    bad_batches = set(_bad_batches(pks).values_list("session_id", flat=True))
    bad_turns = set(_bad_turns(pks).values_list("session_id", flat=True))
    rows = list(counted.order_by("pk"))
    stray, bad_replies = _bad_feedback([values["pk"] for values in rows if values["rated"]], pks)
    damaged_derived = damaged_ranges(pks)
    ranges = WithdrawnRange.objects.filter(session__in=pks).order_by()
    withdrawn = dict(ranges.values_list("session").annotate(Max("high")))
    found = []
    for values in rows:
        of_turns = turns_of.get(values["pk"])
        if of_turns is not None:
            both: dict[str, Any] = {
                **values,
                **of_turns,
                "has_bad_batch": values["pk"] in bad_batches,
                "has_bad_turn": values["pk"] in bad_turns,
                "has_stray_feedback": values["pk"] in stray,
                "has_bad_replies": values["pk"] in bad_replies,
                "damaged_derived": damaged_derived[values["pk"]],
                "withdrawn": withdrawn.get(values["pk"], 0),
            }
            found.append(_Facts(**both))
    return found


def _bad_batches(pks: Sequence[int]) -> QuerySet[Message]:
    """Return the first rows of batches whose length does not lead to the next batch or the end."""
    # The repeated filter by session: without it, PostgreSQL hashes the whole table of messages.
    others = Message.stored.filter(session_id=OuterRef("session_id"), session_id__in=pks)
    is_start = Q(batch__isnull=False) | Q(client_id__isnull=False)
    is_short = others.filter(~is_start, seq=OuterRef("end"))
    is_stored = others.filter(seq=OuterRef("end") - 1)
    # Not a subquery with a range of seq: for each row MariaDB would read the whole session.
    following = Window(Lead("seq"), partition_by=F("session_id"), order_by=F("seq").asc())
    starts = Message.stored.filter(is_start, session_id__in=pks)
    return starts.annotate(end=F("seq") + F("batch"), following=following).filter(
        Q(batch__isnull=True)
        | Q(batch__lt=1)
        | Q(following__lt=F("end"))
        | Exists(is_short)
        | (Q(end__gt=F("session__last_seq") + 1) & ~Exists(is_stored))
    )


def _bad_turns(pks: Sequence[int]) -> QuerySet[Turn]:
    """Return turns whose `user_seq` is not the row of a user's message."""
    begins = Message.stored.filter(
        session_id=OuterRef("session_id"), seq=OuterRef("user_seq"), role=Message.Role.USER
    )
    is_begun = Q(status=Turn.Status.RUNNING) | Q(
        status=Turn.Status.WAITING, client_id=F("session__running")
    )
    return Turn.objects.filter(session_id__in=pks).filter(
        (Q(user_seq__gte=F("session__stored_from")) & ~Exists(begins))
        | (Q(user_seq__isnull=True) & is_begun)
    )


def _bad_feedback(rated: Sequence[int], pks: Sequence[int]) -> tuple[set[int], set[int]]:
    """Return the sessions with stray feedback, or whose replies show other feedback.

    `rated` are the sessions with rows that show feedback.
    """
    given = Feedback.objects.filter(session_id__in=pks).values_list("session_id", flat=True)
    candidates = {*rated, *given.distinct()}
    if not candidates:  # as most sessions: saves three statements
        return set(), set()
    found = (
        set(query(candidates).values_list("session_id", flat=True))
        for query in (stray_feedback, unshown_feedback, unfounded_replies)
    )
    stray, unshown, unfounded = found
    return stray, unshown | unfounded


def _expected(facts: _Facts) -> dict[str, Any]:
    """Return the values of the session's columns that its rows and turns imply."""
    last_seq = max(facts.last_seq, facts.highest or 0)
    first_seq = min(facts.first_seq, last_seq + 1)
    stored_from = facts.stored_from
    if facts.lowest is not None and (facts.lowest > stored_from or _is_below_joined(facts)):
        stored_from = facts.lowest
    last_message_at = facts.last_message_at
    if facts.newest_at is not None and (
        last_message_at is None or abs(facts.newest_at - last_message_at) > MAX_TIME_DIFFERENCE
    ):
        last_message_at = facts.newest_at
    return {
        "last_seq": last_seq,
        "first_seq": first_seq,
        "stored_from": min(stored_from, first_seq),
        "superseded_to": max(facts.superseded_to, facts.superseded or 0, facts.withdrawn),
        "tokens": _expected_tokens(facts),
        "last_message_at": last_message_at,
        "revision": max(facts.revision, facts.highest_revision or 0),
        "rows_revision": max(facts.rows_revision, facts.highest_revision or 0),
        "running": facts.running if facts.active else None,
        "waiting": facts.waiting_turns,
        **_expected_address(facts),
    }


def _expected_tokens(facts: _Facts) -> int:
    """Return the tokens of all rows ever stored.

    If rows were deleted or redacted, only a lower bound is known: the tokens of the rest.
    """
    row_tokens = facts.row_tokens or 0
    if facts.rows != facts.numbers:
        return facts.tokens
    if facts.numbers == max(facts.last_seq, facts.highest or 0) and not facts.redacted:
        return row_tokens
    return max(row_tokens, facts.tokens)


def _is_below_joined(facts: _Facts) -> bool:
    """Return whether the rows under `stored_from` reach up to it without a gap."""
    return facts.below > 0 and facts.below == facts.stored_from - (facts.lowest or 0)


def _expected_address(facts: _Facts) -> dict[str, str]:
    hidden = purged_scope(facts.pk)
    if facts.removed_at is None or facts.scope == hidden:
        return {"scope": facts.scope, "removed_scope": facts.removed_scope}
    return {"scope": hidden, "removed_scope": facts.removed_scope or facts.scope}


def _damage(facts: _Facts) -> Iterator[Finding]:
    """Yield the contradictions in the facts of one session."""
    expected = _expected(facts)
    for name, value in expected.items():
        actual = getattr(facts, name)
        if value != actual:
            sentence = f"{name} is {actual}, but must be {value}."
            yield Finding(code=name, session_pk=facts.pk, sentence=sentence, is_fixable=True)
    if facts.overdue:
        sentence = "The lease of the running turn has expired, but the turn was not ended."
        yield Finding(code="overdue", session_pk=facts.pk, sentence=sentence, is_fixable=True)
    for turn in _stray_turns(facts.pk) if facts.stray else ():
        sentence = f"Turn {turn.pk} is running, but is not the running turn of its session."
        yield Finding(code="stray_turn", session_pk=facts.pk, sentence=sentence, is_fixable=True)
    yield from _bad_removal(facts)
    yield from _bad_numbers(facts, expected["stored_from"], expected["last_seq"])
    if facts.has_bad_batch:
        yield from findings_at(
            "batch",
            facts.pk,
            _bad_batches([facts.pk]).order_by("seq").values_list("seq", flat=True),
            "The length of the batch at row {} differs from the length in its first row.",
        )
    if facts.has_bad_turn:
        yield from findings_at(
            "user_row",
            facts.pk,
            _bad_turns([facts.pk]).order_by("pk").values_list("user_seq", flat=True),
            "The user's message of a turn should be row {}, but is not.",
        )
    if facts.has_stray_feedback:
        yield from findings_at(
            "feedback",
            facts.pk,
            stray_feedback([facts.pk]).values_list("user_seq", flat=True),
            "The feedback on row {} belongs to no turn with a reply.",
        )
    if facts.has_bad_replies:
        sentence = "Replies show other feedback than the stored one."
        yield Finding(code="reply", session_pk=facts.pk, sentence=sentence, is_fixable=True)
    if facts.withdrawn > expected["last_seq"]:
        sentence = f"Row {facts.withdrawn} was withdrawn, but does not exist."
        yield Finding(code="withdrawn", session_pk=facts.pk, sentence=sentence)
    if facts.damaged_derived:
        sentence = f"{facts.damaged_derived} derived rows have an impossible range of messages."
        yield Finding(code="derived", session_pk=facts.pk, sentence=sentence)


def _bad_removal(facts: _Facts) -> Iterator[Finding]:
    is_hidden = facts.scope.startswith(purged_scope(""))
    if facts.removed_at is None and is_hidden:
        sentence = f"The session is not purged, but its scope is {facts.scope}."
    elif facts.removed_at is not None and is_hidden and not facts.removed_scope:
        sentence = "The session is purged, but its former scope is unknown."
    else:
        return
    yield Finding(code="removed", session_pk=facts.pk, sentence=sentence)


def _bad_numbers(facts: _Facts, low: int, high: int) -> Iterator[Finding]:
    """Yield gaps and duplicates from row `low` to row `high`, and detached rows below `low`."""
    has_detached = facts.lowest is not None and facts.lowest < low
    if has_detached:
        yield Finding(
            code="below",
            session_pk=facts.pk,
            sentence=f"{facts.below:,} rows from row {facts.lowest} on were not deleted, "
            f"although all rows below {low} should be.",
            from_seq=facts.lowest,
            to_seq=low - 1,
        )
    if facts.numbers < facts.rows:
        rows = Message.stored.filter(session_id=facts.pk).values("seq")
        duplicates = rows.annotate(count=Count("pk")).filter(count__gt=1).order_by("seq")
        yield from findings_at(
            "double",
            facts.pk,
            duplicates.values_list("seq", flat=True),
            "Row {} is stored more than once.",
        )
    numbers = facts.numbers - (facts.below if has_detached else 0)
    if numbers < high - low + 1:
        yield from limited(_gaps(facts, low, high), "gap", facts.pk)


def _gaps(facts: _Facts, low: int, high: int) -> Iterator[Finding]:
    rows = Message.stored.filter(session_id=facts.pk, seq__gte=low).order_by("seq")
    following = Window(Lead("seq"), order_by="seq")
    before = low - 1
    first = rows.values_list("seq", flat=True).first()
    ends = [(before, high + 1 if first is None else first)]
    ends += (
        rows.annotate(next=following)
        .filter(next__gt=F("seq") + 1)
        .values_list("seq", "next")[: MAX_LISTED + 1]
    )
    if first is not None and facts.highest is not None:
        ends.append((facts.highest, high + 1))
    for last, following_seq in ends:
        if following_seq - last > 1:
            yield _gap(facts.pk, last + 1, following_seq - 1)


def _gap(session_pk: int, low: int, high: int) -> Finding:
    sentence = f"Row {low} is missing." if low == high else f"Rows {low} to {high} are missing."
    return Finding(code="gap", session_pk=session_pk, sentence=sentence, from_seq=low, to_seq=high)


def _stray_turns(session_pk: int) -> QuerySet[Turn]:
    named = Q(session__running__isnull=False, client_id=F("session__running"))
    return Turn.objects.filter(~named, session_id=session_pk, status=Turn.Status.RUNNING).order_by(
        "pk"
    )[:MAX_LISTED]


def _recheck(session: Session, *, repair_by: Actor | None) -> list[Finding]:
    """Return the damage of the session, and repair it for `repair_by`. Needs the lock."""
    [facts] = _read_facts([session.pk])
    found = list(_damage(facts))
    if repair_by is None or not any(finding.is_fixable for finding in found):
        return found
    _repair(session, facts)
    return record_repair(session, found, repair_by)


def _repair(session: Session, facts: _Facts) -> None:
    """Correct the counters and end turns that no process runs. Needs the lock."""
    # The counters first: they number the rows that end a turn.
    _correct_columns(facts)
    if facts.overdue:
        named = session.turns.filter(client_id=session.running, lease_until__isnull=True)
        named.update(lease_until=DatabaseNow() - timedelta(seconds=1))
        recover_overdue_turn(session.pk)
    for turn in _stray_turns(session.pk) if facts.stray else ():
        end_orphaned_turn(lock_pk(session.pk), turn)
    if facts.has_bad_replies:
        revision = lock_pk(session.pk).revision + 1
        repair_replies(session, revision)
        Session.objects.filter(pk=session.pk).update(revision=revision, rows_revision=revision)
    for after in _read_facts([session.pk]):
        _correct_columns(after)


def _correct_columns(facts: _Facts) -> None:
    """Store the expected values of the session's columns. Needs the lock."""
    wrong = {
        name: value for name, value in _expected(facts).items() if value != getattr(facts, name)
    }
    if not wrong:
        return
    wrong["revision"] = _expected(facts)["revision"] + 1
    if "running" in wrong:
        wrong["fence"] = F("fence") + 1
    Session.objects.filter(pk=facts.pk).update(**wrong)


def _orphans(session_pk: int | None) -> Iterator[Finding]:
    """Yield the numbers of rows of each table whose session does not exist."""
    is_gone = ~Exists(Session.objects.filter(pk=OuterRef("session_id")))
    tables: dict[str, QuerySet[Any]] = {
        "messages": Message.stored.all(),
        "turns": Turn.objects.all(),
        "tags": SessionTag.objects.all(),
        "notes": SessionNote.objects.all(),
        "feedback": Feedback.objects.all(),
        "withdrawn ranges": WithdrawnRange.objects.all(),
    }
    for what, rows in tables.items():
        if session_pk is not None:
            rows = rows.filter(session_id=session_pk)
        gone = rows.filter(is_gone).values_list("session_id").annotate(Count("pk"))
        for pk, count in gone.order_by("session_id"):
            sentence = f"{count:,} {what} belong to a session that does not exist."
            yield Finding(code="orphans", session_pk=pk, sentence=sentence)
