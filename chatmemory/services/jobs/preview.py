"""Preview an action on many sessions, in a number of statements that does not grow with theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import (
    Case,
    CharField,
    Count,
    Exists,
    F,
    OuterRef,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Greatest, Length

from chatmemory.database.retries import retried
from chatmemory.models import (
    AuditAction,
    AuditEntry,
    JobAction,
    Session,
    SessionTag,
    Turn,
    WithdrawnRange,
    unexpired,
)
from chatmemory.services.jobs.actions import ACTIONS, UNCHANGED, trim_limit
from chatmemory.services.removal.restore import after, removal_actions
from chatmemory.services.removal.trim_limits import floors_for_limit

Params = Mapping[str, Any]

MAX_COUNTED = 10_000
"""Sessions that `preview_total` counts: a count of all sessions of a large table is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPreview:
    """What an action would do to one session now."""

    skipped: str = ""
    """Why the session would be skipped, as a code; empty if it would not be."""
    messages: int = 0
    """Number of messages to hide; for a restore, the number that becomes visible again."""
    waiting: int = 0
    """Number of waiting turns to cancel."""
    ends_run: bool = False
    """Whether the running turn ends."""
    partial_chars: int = 0
    """Length of the running turn's text, as last saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """What an action would do to all selected sessions, of which up to `MAX_COUNTED` count."""

    sessions: int
    """The number of sessions that the action would change."""
    skipped: Mapping[str, int]
    """The number of sessions that would be skipped, by the code of the reason."""
    messages: int | None
    """The highest possible number of messages to hide; None if it is unknown."""
    waiting: int
    running: int
    is_more: bool
    """Whether more sessions are selected than were counted."""

    @property
    def selected(self) -> int:
        return self.sessions + sum(self.skipped.values())


def _is_stuck(params: Params) -> Q:
    overdue = Turn.objects.overdue().filter(session=OuterRef("pk"), client_id=OuterRef("running"))
    return Q(Exists(overdue))


def _has_tag(params: Params) -> Q:
    # Without a tag, as before the operator has typed one, no session is skipped.
    tagged = SessionTag.objects.filter(session=OuterRef("pk"), tag=params.get("tag", ""))
    return Q(Exists(tagged))


def _lacks_tag(params: Params) -> Q:
    return ~_has_tag(params) if params.get("tag") else Q(pk__isnull=True)


def _is_erased(params: Params) -> Q:
    erasures = AuditEntry.objects.filter(action=AuditAction.ERASE, session_pk=OuterRef("pk"))
    return Q(Exists(erasures), removed_at__isnull=False)


def _has_withdrawn() -> Q:
    ranges = WithdrawnRange.objects.filter(session=OuterRef("session_pk"), emptied_to__isnull=True)
    entries = AuditEntry.objects.filter(
        Exists(ranges.filter(low=OuterRef("from_seq"), high=OuterRef("to_seq"))),
        action=AuditAction.WITHDRAW,
        session_pk=OuterRef("pk"),
        from_seq__gte=OuterRef("first_seq"),
    )
    return Q(Exists(entries))


def _has(column: str, *, is_set: bool = True) -> Callable[[Params], Q]:
    return lambda params: Q(**{f"{column}__isnull": not is_set})


_PURGED = ("purged", _has("removed_at"))
_EXPIRED = ("expired", lambda params: ~unexpired())
_HELD = ("held", _has("held_at"))
_IDLE = ("idle", _has("running", is_set=False))
_ERASED = ("erased", _is_erased)
_STORED = (
    UNCHANGED,
    lambda params: Q(~_has_withdrawn(), removed_at__isnull=True, stored_from__gte=F("first_seq")),
)

SKIPPED: Mapping[str, Sequence[tuple[str, Callable[[Params], Q]]]] = {
    JobAction.TRIM: (_PURGED, _EXPIRED, _HELD),
    JobAction.CLEAR: (_PURGED, _EXPIRED, _HELD),
    JobAction.PURGE: (_PURGED, _HELD),
    JobAction.RESTORE: (_ERASED, _STORED),
    JobAction.HOLD: (_ERASED, (UNCHANGED, _has("held_at"))),
    JobAction.RELEASE: (_ERASED, (UNCHANGED, _has("held_at", is_set=False))),
    JobAction.ARCHIVE: (_PURGED, _EXPIRED, (UNCHANGED, _has("archived_at"))),
    JobAction.UNARCHIVE: (_PURGED, _EXPIRED, (UNCHANGED, _has("archived_at", is_set=False))),
    JobAction.TAG: (_ERASED, (UNCHANGED, _has_tag)),
    JobAction.UNTAG: (_ERASED, (UNCHANGED, _lacks_tag)),
    JobAction.STOP: (_PURGED, _EXPIRED, _IDLE),
    JobAction.END: (_IDLE, ("not_stuck", lambda params: ~_is_stuck(params))),
}
"""For each action, the sessions that it would not change, by the first code that applies."""


def skip_code(action: str, params: Params) -> Case:
    """Return an expression on a session: why an action would not change it, otherwise empty."""
    cases = [When(condition(params), then=Value(code)) for code, condition in SKIPPED[action]]
    return Case(*cases, default=Value(""), output_field=CharField())


@retried(is_repeatable=True)
def skip_codes(session: Session) -> dict[str, str]:
    """Return for each action why it would not change this session; empty if it would."""
    codes = {f"not_{action}": skip_code(action, {}) for action in ACTIONS}
    row = Session.objects.filter(pk=session.pk).annotate(**codes).values(*codes).first()
    return {name.removeprefix("not_"): code for name, code in (row or {}).items()}


@retried(is_repeatable=True)
def preview_sessions(
    *, action: str, sessions: Sequence[Session], params: Params
) -> dict[int, ActionPreview]:
    """Return what an action would do to each of these sessions, by primary key.

    Raises BadInput for wrong params, MemoryUnavailable.
    """
    ACTIONS[action].check(params)
    chosen = Session.objects.filter(pk__in=[session.pk for session in sessions])
    skipped = dict(chosen.annotate(code=skip_code(action, params)).values_list("pk", "code"))
    free = [session for session in sessions if not skipped.get(session.pk, "not_found")]
    moved = _count_messages(action, free, params)
    partial = (
        _partial_chars(free)
        if action in (JobAction.CLEAR, JobAction.PURGE, JobAction.STOP, JobAction.END)
        else {}
    )
    previews = {pk: ActionPreview(skipped=code) for pk, code in skipped.items()}
    for session in free:
        is_ended = action in (JobAction.CLEAR, JobAction.PURGE)
        messages = moved.get(session.pk, 0)
        previews[session.pk] = ActionPreview(
            skipped=UNCHANGED
            if action in (JobAction.TRIM, JobAction.RESTORE) and session.pk not in moved
            else "",
            messages=messages,
            waiting=session.waiting if is_ended else 0,
            ends_run=session.pk in partial,
            partial_chars=partial.get(session.pk, 0),
        )
    return previews


@retried(is_repeatable=True)
def preview_total(*, action: str, sessions: QuerySet[Session], params: Params) -> Total:
    """Return what an action would do to all sessions that a queryset selects, in one statement.

    Raises MemoryUnavailable.
    """
    found = Session.objects.filter(pk__in=sessions.order_by().values("pk"))
    counted = found.annotate(
        code=skip_code(action, params), size=_hidden_size(params), is_running=_IS_RUNNING
    )[: MAX_COUNTED + 1]
    codes = ["", *(code for code, _ in SKIPPED[action])]
    numbers = {f"of_{n}": Count("pk", filter=Q(code=code)) for n, code in enumerate(codes)}
    is_acted = Q(code="")
    row = counted.aggregate(
        **numbers,
        messages=Sum("size", filter=is_acted, default=0),
        turns=Sum("waiting", filter=is_acted, default=0),
        runs=Sum("is_running", filter=is_acted, default=0),
    )
    by_code = {code: row[f"of_{n}"] for n, code in enumerate(codes)}
    is_more = sum(by_code.values()) > MAX_COUNTED
    acted = by_code.pop("")
    has_size = action in (JobAction.CLEAR, JobAction.PURGE) or "keep_last" in params
    return Total(
        sessions=acted - 1 if is_more and acted else acted,
        skipped={code: number for code, number in by_code.items() if number},
        messages=row["messages"] if has_size else None,
        waiting=row["turns"],
        running=row["runs"],
        is_more=is_more,
    )


_IS_RUNNING = Case(When(running__isnull=False, then=1), default=0)


def _hidden_size(params: Params) -> Any:
    """Return an expression on a session: the most messages that a removal hides."""
    visible = F("last_seq") - F("first_seq") + 1
    keep = params.get("keep_last")
    return visible if keep is None else Greatest(visible - keep, Value(0))


def _count_messages(action: str, sessions: Sequence[Session], params: Params) -> dict[int, int]:
    """Return how many messages an action hides or restores, for sessions that it changes."""
    match action:
        case JobAction.CLEAR | JobAction.PURGE:
            return {session.pk: session.message_count for session in sessions}
        case JobAction.TRIM:
            floors = floors_for_limit(sessions, trim_limit(params))
            first = {session.pk: session.first_seq for session in sessions}
            return {pk: at - first[pk] for pk, at in floors.items() if at > first[pk]}
        case JobAction.RESTORE:
            return _restored(sessions, params.get("entry"))
        case _:
            return {}


def _restored(sessions: Sequence[Session], chosen: int | None) -> dict[int, int]:
    """Return how many messages a restore shows again, for sessions with a removal to undo."""
    removals: dict[int, list[AuditEntry]] = {session.pk: [] for session in sessions}
    for entry in removal_actions(*removals):
        removals[entry.session_pk or 0] = after(removals[entry.session_pk or 0], entry)
    found = {}
    for session in sessions:
        wanted = [e for e in removals[session.pk] if chosen in (None, e.pk)]
        start = (wanted[-1].from_seq or 1) if wanted else 0
        if wanted and wanted[-1].action == AuditAction.WITHDRAW:
            found[session.pk] = wanted[-1].counts["messages"]
        elif start >= session.stored_from:
            found[session.pk] = session.first_seq - start
    return found


def _partial_chars(sessions: Sequence[Session]) -> dict[int, int]:
    """Return the lengths of the running turns' texts, by session."""
    running = Turn.objects.filter(
        session__in=sessions, client_id=F("session__running"), status=Turn.Status.RUNNING
    )
    return dict(running.values_list("session_id", Length("partial")))
