"""What the confirmation page of an action shows: each session, and the totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from chatmemory.admin.jobs.selection import Selection
from chatmemory.admin.jobs.words import reason_of
from chatmemory.conf import settings
from chatmemory.database.faults import write_connection
from chatmemory.errors import BadInput
from chatmemory.models import Session, database_now
from chatmemory.services.jobs.actions import ACTIONS, milliseconds_of
from chatmemory.services.jobs.preview import ActionPreview, preview_sessions, preview_total

TYPED_SESSIONS = 10
"""A removal from more sessions than this requires that the operator types their number."""
TYPED_MESSAGES = 100
"""A removal of more messages than this requires that the operator types their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A session on the page; `preview` is None while the form is incomplete."""

    session: Session
    preview: ActionPreview | None

    @property
    def skipped(self) -> str:
        """Why the action does not change the session."""
        return reason_of(self.preview.skipped) if self.preview and self.preview.skipped else ""

    @property
    def kept(self) -> int | None:
        """The number of messages that a removal leaves."""
        return None if self.preview is None else self.session.message_count - self.preview.messages

    @property
    def last_removed(self) -> int | None:
        """The seq of the last message that a removal hides."""
        messages = self.preview.messages if self.preview else 0
        return self.session.first_seq + messages - 1 if messages else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The effect on all selected sessions."""

    rows: Sequence[Row]
    sessions: int
    """The number of sessions that the action would change."""
    messages: int | None
    """The number to hide or restore; None if it is unknown."""
    skipped: Mapping[str, int]
    """The number of the other sessions, by reason."""
    action: str
    is_listed: bool
    seen_at: int
    """The database's time before the preview, in milliseconds."""
    is_more: bool = False

    @property
    def is_hiding(self) -> bool:
        """Whether the action hides messages."""
        return ACTIONS[self.action].hides

    @property
    def is_removal(self) -> bool:
        return ACTIONS[self.action].removes

    @property
    def undo_until(self) -> datetime | None:
        """Until when a removal can be undone."""
        days = settings.UNDO_DAYS if self.is_hiding else 0
        return timezone.now() + timedelta(days=days) if days else None

    @property
    def count(self) -> int:
        """The number that the operator confirms."""
        is_of_messages = self.is_hiding and self.is_listed
        return (self.messages or 0) if is_of_messages else self.sessions

    @property
    def count_label(self) -> str:
        if self.is_hiding and self.is_listed:
            return _("Messages to remove")
        if self.is_more:
            return _("Conversations to change, counted up to this number")
        return _("Conversations")

    @property
    def is_typed(self) -> bool:
        """Whether the operator must type the number."""
        if not self.is_removal:
            return not self.is_listed
        return self.sessions > TYPED_SESSIONS or (self.messages or 0) > TYPED_MESSAGES


def summarize(action: str, selection: Selection, params: Mapping[str, Any]) -> Summary:
    """Return what an action would do now; without details if the params are incomplete."""
    seen_at = milliseconds_of(database_now(write_connection()))
    previews = _previews(action, selection, params)
    rows = [Row(session=session, preview=previews.get(session.pk)) for session in selection.listed]
    if not selection.is_listed and previews:
        total = preview_total(action=action, sessions=selection.sessions, params=params)
        return Summary(
            sessions=total.sessions,
            messages=total.messages,
            skipped=_by_reason(total.skipped),
            is_more=total.is_more,
            rows=rows,
            action=action,
            seen_at=seen_at,
            is_listed=False,
        )
    changed = [row.preview for row in rows if row.preview and not row.preview.skipped]
    return Summary(
        sessions=len(changed) if previews else len(rows),
        messages=sum(preview.messages for preview in changed) if previews else None,
        skipped=_by_reason(Counter(row.preview.skipped for row in rows if row.preview)),
        rows=rows,
        action=action,
        seen_at=seen_at,
        is_listed=selection.is_listed,
    )


def _previews(
    action: str, selection: Selection, params: Mapping[str, Any]
) -> dict[int, ActionPreview]:
    try:
        return preview_sessions(action=action, sessions=selection.listed, params=params)
    except (BadInput, TypeError, KeyError):  # the form has no or wrong arguments, and shows it
        return {}


def _by_reason(codes: Mapping[str, int]) -> dict[str, int]:
    return {reason_of(code): number for code, number in codes.items() if code}
