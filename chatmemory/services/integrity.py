"""What is damaged, and the repair of what can be told from the rest without inventing words.

A first look takes many sessions at a time and no lock; each of its statements is of one moment.
What it finds counts only if a second look under the session's lock finds it too, so writers at
work are never taken for damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Exists, F, Max, Min, OuterRef, Q, QuerySet, Sum, Window
from django.db.models.functions import Lead

from chatmemory.codec import check_value
from chatmemory.errors import NotFound
from chatmemory.models import DatabaseNow, Message, Session, SessionQuerySet, SessionTag, Turn
from chatmemory.services.actors import Actor, importing, removed
from chatmemory.services.contents import check_rows, untold
from chatmemory.services.ends import end_overdue, end_stray
from chatmemory.services.findings import LISTED, Finding, at, fixed, limited, under_lock
from chatmemory.services.floor import LIVE
from chatmemory.services.locks import lock_pk
from chatmemory.services.walk import pages

MAX_PK = 2**63 - 1
"""The highest primary key; a database may refuse to look for a higher one."""

SESSIONS = 100
"""Sessions looked at in one go."""

CLOCKS_DIFFER = timedelta(minutes=1)
"""How far a session's last time may be from its newest row's: one waited for the lock between."""


def check_integrity(
    *,
    session_pk: int | None = None,
    scope: str | None = None,
    repair_by: Actor | None = None,
) -> Iterator[Finding]:
    """Yield what is damaged: in all sessions, in one, or in those of a scope, purged ones too.

    With `repair_by` what is fixable is repaired, a session at a time under its lock, each with an
    entry `repair` in the audit. No words are made, no number is given anew, nothing is deleted.
    Raises NotFound if there is nothing under this `session_pk`, BadInput for a bad `scope`.
    """
    if scope is not None:
        check_value(scope, "scope")
    if session_pk is not None and not 0 < session_pk <= MAX_PK:
        raise NotFound
    has_any = False
    for pks in pages(_concerned(session_pk, scope), SESSIONS):
        has_any = True
        for facts in _facts(pks):
            if _is_import(facts):
                continue
            if next(_damage(facts), None) is not None:
                yield from _second_look(facts.pk, repair_by)
            if facts.untold:
                yield from check_rows(facts.pk, facts.first_seq, repair_by)
    orphans = iter(()) if scope is not None else _orphans(session_pk)
    for finding in orphans:
        has_any = True
        yield finding
    if session_pk is not None and not has_any:
        raise NotFound


def _is_import(facts: _Facts) -> bool:
    """Whether it is a half-imported session: it gets its counters when its last row is there."""
    scopes = (facts.scope, facts.removed_scope)
    return any(scope.startswith(importing("")) for scope in scopes)


def _concerned(session_pk: int | None, scope: str | None) -> SessionQuerySet:
    sessions = Session.objects.all()
    if session_pk is not None:
        sessions = sessions.filter(pk=session_pk)
    return sessions if scope is None else sessions.of_scopes(scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What a session says of itself, and what its rows and turns say."""

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
    """Rows under `stored_from`."""
    lowest: int | None
    highest: int | None
    said: int | None
    """The sum of the rows' tokens."""
    changed: int | None
    """The highest revision of a row."""
    newest_at: datetime | None
    redacted: int
    untold: int

    running: str | None
    waiting: int
    waiting_turns: int
    live: int
    overdue: int
    stray: int
    superseded: int | None
    """The highest number that a turn says it supersedes."""
    has_bad_batch: bool
    has_bad_turn: bool


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


def _facts(pks: Sequence[int]) -> list[_Facts]:
    """The facts of these sessions, in order of their keys; those that are gone are left out."""
    sessions = Session.objects.filter(pk__in=pks)
    counted = sessions.values(*_OF_SESSION).annotate(
        rows=Count("messages"),
        numbers=Count("messages__seq", distinct=True),
        below=Count("messages", filter=Q(messages__seq__lt=F("stored_from"))),
        lowest=Min("messages__seq"),
        highest=Max("messages__seq"),
        said=Sum("messages__tokens"),
        changed=Max("messages__revision"),
        newest_at=Max("messages__created_at"),
        redacted=Count("messages", filter=Q(messages__redacted=True)),
        untold=Count("messages", filter=untold("messages__")),
    )
    is_named = Q(running__isnull=False, turns__client_id=F("running"))
    is_not_named = Q(running__isnull=True) | ~Q(turns__client_id=F("running"))
    runs = Q(turns__status=Turn.Status.RUNNING)
    is_over = Q(turns__lease_until__lt=DatabaseNow()) | Q(turns__lease_until__isnull=True)
    turns = sessions.values("pk", "running", "waiting").annotate(
        waiting_turns=Count("turns", filter=Q(turns__status=Turn.Status.WAITING) & is_not_named),
        live=Count("turns", filter=Q(turns__status__in=LIVE) & is_named),
        overdue=Count("turns", filter=runs & is_named & is_over),
        stray=Count("turns", filter=runs & is_not_named),
        superseded=Max("turns__replaces_to", filter=Q(turns__user_seq__isnull=False)),
    )
    turns_of = {values["pk"]: values for values in turns}
    bad_batches = set(_bad_batches(pks).values_list("session_id", flat=True))
    bad_turns = set(_bad_turns(pks).values_list("session_id", flat=True))
    found = []
    for values in counted.order_by("pk"):
        of_turns = turns_of.get(values["pk"])
        if of_turns is not None:
            both: dict[str, Any] = {**values, **of_turns}
            is_bad = values["pk"] in bad_batches, values["pk"] in bad_turns
            found.append(_Facts(**both, has_bad_batch=is_bad[0], has_bad_turn=is_bad[1]))
    return found


def _bad_batches(pks: Sequence[int]) -> QuerySet[Message]:
    """First rows of batches whose length isn't the way to the next batch, or to the end."""
    others = Message.stored.filter(session_id=OuterRef("session_id"))
    is_start = Q(batch__isnull=False) | Q(client_id__isnull=False)
    within = others.filter(is_start, seq__gt=OuterRef("seq"), seq__lt=OuterRef("end"))
    # Of these sessions once more: PostgreSQL makes a table of it, else of all messages there are.
    is_short = others.filter(~is_start, seq=OuterRef("end"), session_id__in=pks)
    is_stored = others.filter(seq__gte=OuterRef("end") - 1)
    starts = Message.stored.filter(is_start, session_id__in=pks)
    return starts.annotate(end=F("seq") + F("batch")).filter(
        Q(batch__isnull=True)
        | Q(batch__lt=1)
        | Exists(within)
        | Exists(is_short)
        | (Q(end__gt=F("session__last_seq") + 1) & ~Exists(is_stored))
    )


def _bad_turns(pks: Sequence[int]) -> QuerySet[Turn]:
    """Turns whose user's message is not where they say."""
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


def _right(facts: _Facts) -> dict[str, Any]:
    """What columns of the session must be, by what its rows and turns say."""
    last_seq = max(facts.last_seq, facts.highest or 0)
    first_seq = min(facts.first_seq, last_seq + 1)
    stored_from = facts.stored_from
    if facts.lowest is not None and (facts.lowest > stored_from or _is_below_joined(facts)):
        stored_from = facts.lowest
    last_message_at = facts.last_message_at
    if facts.newest_at is not None and (
        last_message_at is None or abs(facts.newest_at - last_message_at) > CLOCKS_DIFFER
    ):
        last_message_at = facts.newest_at
    return {
        "last_seq": last_seq,
        "first_seq": first_seq,
        "stored_from": min(stored_from, first_seq),
        "superseded_to": max(facts.superseded_to, facts.superseded or 0),
        "tokens": _right_tokens(facts),
        "last_message_at": last_message_at,
        "revision": max(facts.revision, facts.changed or 0),
        "rows_revision": max(facts.rows_revision, facts.changed or 0),
        "running": facts.running if facts.live else None,
        "waiting": facts.waiting_turns,
        **_right_address(facts),
    }


def _right_tokens(facts: _Facts) -> int:
    """What was ever stored; no less than what is left, where rows are gone or redacted."""
    said = facts.said or 0
    if facts.rows != facts.numbers:
        return facts.tokens
    if facts.numbers == max(facts.last_seq, facts.highest or 0) and not facts.redacted:
        return said
    return max(said, facts.tokens)


def _is_below_joined(facts: _Facts) -> bool:
    """Whether the rows under `stored_from` reach up to it without a hole."""
    return facts.below > 0 and facts.below == facts.stored_from - (facts.lowest or 0)


def _right_address(facts: _Facts) -> dict[str, str]:
    hidden = removed(facts.pk)
    if facts.removed_at is None or facts.scope == hidden:
        return {"scope": facts.scope, "removed_scope": facts.removed_scope}
    return {"scope": hidden, "removed_scope": facts.removed_scope or facts.scope}


def _damage(facts: _Facts) -> Iterator[Finding]:
    """What the facts of one session don't agree on."""
    right = _right(facts)
    for name, value in right.items():
        is_value = getattr(facts, name)
        if value != is_value:
            sentence = f"{name} is {is_value}, but must be {value}."
            yield Finding(code=name, session_pk=facts.pk, sentence=sentence, is_fixable=True)
    if facts.overdue:
        sentence = "The lease of the running turn has ended, and nobody ended the turn."
        yield Finding(code="overdue", session_pk=facts.pk, sentence=sentence, is_fixable=True)
    for turn in _stray_turns(facts.pk) if facts.stray else ():
        sentence = f"Turn {turn.pk} runs, but the session doesn't name it."
        yield Finding(code="stray_turn", session_pk=facts.pk, sentence=sentence, is_fixable=True)
    yield from _bad_removal(facts)
    yield from _bad_numbers(facts, right["stored_from"], right["last_seq"])
    if facts.has_bad_batch:
        yield from at(
            "batch",
            facts.pk,
            _bad_batches([facts.pk]).order_by("seq").values_list("seq", flat=True),
            "The batch that begins at {} has another length than its first row says.",
        )
    if facts.has_bad_turn:
        yield from at(
            "user_row",
            facts.pk,
            _bad_turns([facts.pk]).order_by("pk").values_list("user_seq", flat=True),
            "A turn says that its user's message is row {}, where none is.",
        )


def _bad_removal(facts: _Facts) -> Iterator[Finding]:
    is_hidden = facts.scope.startswith(removed(""))
    if facts.removed_at is None and is_hidden:
        sentence = f"The session is not purged, but its scope is {facts.scope}."
    elif facts.removed_at is not None and is_hidden and not facts.removed_scope:
        sentence = "The session is purged, but nothing says from which scope."
    else:
        return
    yield Finding(code="removed", session_pk=facts.pk, sentence=sentence)


def _bad_numbers(facts: _Facts, low: int, high: int) -> Iterator[Finding]:
    """Gaps and doubles between `low` and `high`, and rows apart from them."""
    is_apart = facts.lowest is not None and facts.lowest < low
    if is_apart:
        yield Finding(
            code="below",
            session_pk=facts.pk,
            sentence=f"{facts.below:,} rows from {facts.lowest} on stand below row {low}, "
            "before which all was deleted.",
            from_seq=facts.lowest,
            to_seq=low - 1,
        )
    if facts.numbers < facts.rows:
        rows = Message.stored.filter(session_id=facts.pk).values("seq")
        doubles = rows.annotate(count=Count("pk")).filter(count__gt=1).order_by("seq")
        yield from at(
            "double", facts.pk, doubles.values_list("seq", flat=True), "Row {} is there twice."
        )
    numbers = facts.numbers - (facts.below if is_apart else 0)
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
        .values_list("seq", "next")[: LISTED + 1]
    )
    if first is not None and facts.highest is not None:
        ends.append((facts.highest, high + 1))
    for last, following_seq in ends:
        if following_seq - last > 1:
            yield _gap(facts.pk, last + 1, following_seq - 1)


def _gap(session_pk: int, low: int, high: int) -> Finding:
    are_gone = f"Row {low} is gone." if low == high else f"Rows {low} to {high} are gone."
    return Finding(code="gap", session_pk=session_pk, sentence=are_gone, from_seq=low, to_seq=high)


def _stray_turns(session_pk: int) -> QuerySet[Turn]:
    named = Q(session__running__isnull=False, client_id=F("session__running"))
    return Turn.objects.filter(~named, session_id=session_pk, status=Turn.Status.RUNNING).order_by(
        "pk"
    )[:LISTED]


def _second_look(session_pk: int, repair_by: Actor | None) -> list[Finding]:
    def look(session: Session) -> list[Finding]:
        [facts] = _facts([session.pk])
        found = list(_damage(facts))
        if repair_by is None or not any(finding.is_fixable for finding in found):
            return found
        _repair(session, facts)
        return fixed(session, found, repair_by)

    return under_lock(session_pk, look)


def _repair(session: Session, facts: _Facts) -> None:
    """Needs the lock. The counters come first: rows that end a turn are numbered by them."""
    _put_right(facts)
    if facts.overdue:
        named = session.turns.filter(client_id=session.running, lease_until__isnull=True)
        named.update(lease_until=DatabaseNow() - timedelta(seconds=1))
        end_overdue(session.pk)
    for turn in _stray_turns(session.pk) if facts.stray else ():
        end_stray(lock_pk(session.pk), turn)
    for after in _facts([session.pk]):
        _put_right(after)


def _put_right(facts: _Facts) -> None:
    wrong = {name: value for name, value in _right(facts).items() if value != getattr(facts, name)}
    if not wrong:
        return
    wrong["revision"] = _right(facts)["revision"] + 1
    if "running" in wrong:
        wrong["fence"] = F("fence") + 1
    Session.objects.filter(pk=facts.pk).update(**wrong)


def _orphans(session_pk: int | None) -> Iterator[Finding]:
    """Rows, turns and tags of sessions that are gone."""
    is_gone = ~Exists(Session.objects.filter(pk=OuterRef("session_id")))
    tables: dict[str, QuerySet[Any]] = {
        "messages": Message.stored.all(),
        "turns": Turn.objects.all(),
        "tags": SessionTag.objects.all(),
    }
    for what, rows in tables.items():
        if session_pk is not None:
            rows = rows.filter(session_id=session_pk)
        gone = rows.filter(is_gone).values_list("session_id").annotate(Count("pk"))
        for pk, count in gone.order_by("session_id").iterator():
            sentence = f"{count:,} {what} are of a session that is gone."
            yield Finding(code="orphans", session_pk=pk, sentence=sentence)
