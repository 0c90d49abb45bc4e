"""The actions of jobs: for each its permission, its service, and the action that undoes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from chatmemory.access.actors import Actor
from chatmemory.errors import BadInput
from chatmemory.models import AuditAction, AuditEntry, JobAction, Session
from chatmemory.services.audit.entries import record
from chatmemory.services.removal import hide, holds, restore
from chatmemory.services.removal.trim_limits import TrimLimit, check_trim_limit, floor_for_limit
from chatmemory.services.tags import check_tag, tag_session, untag_session
from chatmemory.services.turns.recovery import recover_overdue_turn
from chatmemory.services.turns.stops import stop_running_turn

UNCHANGED = "unchanged"
"""The outcome of an item whose session already was as the action would leave it."""
CHANGED = "changed"
"""The outcome of an item whose session is no longer as it was at the confirmation."""
CHANGED_SINCE = "changed_since"
"""The outcome of an undo of an action on a hold, archiving or tag that a later action followed."""
REMOVED_SINCE = "removed_since"
"""The outcome of an undo of a removal that a later removal followed."""


class Skipped(Exception):
    """The action cannot change this session; `code` is the outcome of the item."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class _Call(TypedDict):
    """The arguments that all services of one session have."""

    session_key: str
    scope: str
    by: Actor
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A session on which a job acts."""

    session: Session
    by: Actor
    reason: str
    params: Mapping[str, Any]
    entry_pk: int | None = None
    """The audit entry to undo, in a job that undoes another."""

    @property
    def scope(self) -> str:
        """The scope under which services reach the session, also after a purge."""
        scope: str = self.session.removed_scope or self.session.scope
        return scope

    @property
    def call(self) -> _Call:
        return {
            "session_key": self.session.key,
            "scope": self.scope,
            "by": self.by,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action on sessions.

    `service` calls the service of one session, inside a transaction that has locked the session. It
    returns the audit entry; None means that nothing had to change.
    """

    permission: str
    service: Callable[[Target], AuditEntry | None]
    undo: str = ""
    """The action that undoes this one; empty if none does."""
    removes: bool = False
    """Whether it hides messages or ends turns."""
    check: Callable[[Mapping[str, Any]], None] = lambda params: None
    """Raises BadInput for wrong arguments."""
    prepare: Callable[[Target], Mapping[str, Any]] | None = None
    """Does what must not happen under the session's lock; returns the arguments for `service`."""

    @property
    def hides(self) -> bool:
        """Whether it hides messages."""
        return self.undo == JobAction.RESTORE


def trim_limit(params: Mapping[str, Any]) -> TrimLimit:
    """Return the limit of a trim from its JSON. Raises BadInput."""
    if "before" in params:
        try:
            return TrimLimit(before=datetime.fromisoformat(params["before"]))
        except ValueError:
            raise BadInput("before is not a time.", field="before") from None
    limit: TrimLimit = {**params}  # type: ignore[typeddict-item]  # `check_trim_limit` checks it
    return limit


def _check_trim(params: Mapping[str, Any]) -> None:
    check_trim_limit(trim_limit(params))


def _prepare_trim(target: Target) -> Mapping[str, Any]:
    # A search by time reads all older rows, which can take seconds. Later rows are newer.
    if "before" not in target.params:
        return target.params
    return {"before_seq": floor_for_limit(target.session, trim_limit(target.params))}


def _trim(target: Target) -> AuditEntry | None:
    limit = trim_limit(target.params)
    return hide.trim_session(session_pk=target.session.pk, **target.call, **limit)


def _clear(target: Target) -> AuditEntry:
    if "seen_at" in target.params:
        last = restore.removal_actions(target.session.pk).last()
        _check_seen(target, last.created_at if last else None)
    return hide.clear_session(session_pk=target.session.pk, **target.call)


def _purge(target: Target) -> AuditEntry:
    return hide.purge_session(session_pk=target.session.pk, **target.call)


def _check_seen(target: Target, changed_at: datetime | None) -> None:
    """Raise Skipped if the operator's preview was older than this change.

    The second of two confirmations would otherwise undo one more removal, stop the next reply, or
    clear again.
    """
    seen_at = target.params.get("seen_at")
    if seen_at is not None and changed_at is not None and milliseconds_of(changed_at) > seen_at:
        raise Skipped(CHANGED)


def milliseconds_of(moment: datetime) -> int:
    """Return a time in milliseconds, as the parameter `seen_at` has it."""
    return int(moment.timestamp() * 1000)


def _removal_of(target: Target) -> AuditEntry | None:
    """Return the removal to undo: the chosen one, or the last one. Raises Skipped."""
    actions = list(restore.removal_actions(target.session.pk))
    _check_seen(target, actions[-1].created_at if actions else None)
    removals = restore.not_undone(actions)
    if target.entry_pk is not None:  # of a job, and no job withdraws
        removals = [found for found in removals if found.action != AuditAction.WITHDRAW]
    if (chosen := target.params.get("entry")) is not None:
        return next((found for found in removals if found.pk == chosen), None)
    last = removals[-1] if removals else None
    if target.entry_pk is None or last is None or last.pk == target.entry_pk:
        return last
    # A restore of an earlier removal would also undo the later ones, of which no page has warned.
    is_effective = any(found.pk == target.entry_pk for found in removals)
    raise Skipped(REMOVED_SINCE if is_effective else UNCHANGED)


def _prepare_restore(target: Target) -> Mapping[str, Any]:
    # In its own transaction, since a transaction removes from one session only.
    if entry := _removal_of(target):
        restore.free_address(target.session, entry, target.by)
    return target.params


def _restore(target: Target) -> AuditEntry | None:
    entry = _removal_of(target)
    if entry is None:
        return None
    return restore.restore_session(
        entry_pk=entry.pk, by=target.by, reason=target.reason, scope=target.scope
    )


def _check_newest(target: Target, *actions: AuditAction) -> None:
    """Raise Skipped in an undo if a later action than the undone one decides the state now."""
    if target.entry_pk is None:
        return
    entries = AuditEntry.objects.filter(session_pk=target.session.pk, action__in=actions)
    later = entries.filter(pk__gt=target.entry_pk)
    if any(entry.counts.get("tag") == target.params.get("tag") for entry in later):
        raise Skipped(CHANGED_SINCE)


def _hold(target: Target) -> AuditEntry | None:
    _check_newest(target, AuditAction.HOLD, AuditAction.RELEASE)
    return holds.hold_session(session_pk=target.session.pk, **target.call)


def _release(target: Target) -> AuditEntry | None:
    _check_newest(target, AuditAction.HOLD, AuditAction.RELEASE)
    return holds.release_session(session_pk=target.session.pk, **target.call)


def _archive(target: Target) -> AuditEntry | None:
    _check_newest(target, AuditAction.ARCHIVE, AuditAction.UNARCHIVE)
    if target.session.archived_at is not None:
        return None  # also of its owner, whose archive the service would make the operator's
    return holds.archive_session(**target.call)


def _unarchive(target: Target) -> AuditEntry | None:
    _check_newest(target, AuditAction.ARCHIVE, AuditAction.UNARCHIVE)
    return holds.unarchive_session(**target.call)


def _check_tag(params: Mapping[str, Any]) -> None:
    check_tag(params["tag"])


def _tag(target: Target) -> AuditEntry | None:
    _check_newest(target, AuditAction.TAG, AuditAction.UNTAG)
    return tag_session(session_pk=target.session.pk, tag=target.params["tag"], **target.call)


def _untag(target: Target) -> AuditEntry | None:
    _check_newest(target, AuditAction.TAG, AuditAction.UNTAG)
    return untag_session(session_pk=target.session.pk, tag=target.params["tag"], **target.call)


def _stop(target: Target) -> AuditEntry | None:
    turn = target.session.turns.filter(client_id=target.session.running or "").first()
    _check_seen(target, (turn.started_at or turn.created_at) if turn else None)
    stopped = stop_running_turn(session_key=target.session.key, scope=target.scope, by=target.by)
    if stopped is None:
        return None
    return record(target.session, AuditAction.STOP, target.by, target.reason, turn=stopped.turn)


def _end(target: Target) -> AuditEntry | None:
    turn = target.session.running
    if turn is None or not recover_overdue_turn(target.session.pk):
        return None
    return record(target.session, AuditAction.END, target.by, target.reason, turn=turn)


ACTIONS: Mapping[str, Action] = {
    JobAction.TRIM: Action(
        permission="trim_history",
        service=_trim,
        undo=JobAction.RESTORE,
        removes=True,
        check=_check_trim,
        prepare=_prepare_trim,
    ),
    JobAction.CLEAR: Action(
        permission="clear_history", service=_clear, undo=JobAction.RESTORE, removes=True
    ),
    JobAction.PURGE: Action(
        permission="purge_history", service=_purge, undo=JobAction.RESTORE, removes=True
    ),
    JobAction.RESTORE: Action(
        permission="restore_history", service=_restore, prepare=_prepare_restore
    ),
    JobAction.HOLD: Action(permission="hold_session", service=_hold, undo=JobAction.RELEASE),
    JobAction.RELEASE: Action(permission="hold_session", service=_release, undo=JobAction.HOLD),
    JobAction.ARCHIVE: Action(
        permission="archive_session", service=_archive, undo=JobAction.UNARCHIVE
    ),
    JobAction.UNARCHIVE: Action(
        permission="archive_session", service=_unarchive, undo=JobAction.ARCHIVE
    ),
    JobAction.TAG: Action(
        permission="tag_session", service=_tag, undo=JobAction.UNTAG, check=_check_tag
    ),
    JobAction.UNTAG: Action(
        permission="tag_session", service=_untag, undo=JobAction.TAG, check=_check_tag
    ),
    JobAction.STOP: Action(permission="stop_turn", service=_stop, removes=True),
    JobAction.END: Action(permission="stop_turn", service=_end, removes=True),
}
"""The actions by name. Each changes one session in one transaction, with one audit entry."""


def permission_of(action: str) -> str:
    """Return the codename that an action, or an export, requires."""
    return "export_history" if action == "export" else ACTIONS[action].permission
