"""What the audit states about a session: who removed, redacted, held or archived, when and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.sections import may_view
from chatmemory.admin.text import visible
from chatmemory.models import AuditAction, AuditEntry, Session
from chatmemory.services.removal.restore import UNDOABLE, not_undone, undo_until
from chatmemory.services.turns.unstored import LEAVES_TEXT

EXPLAINED = (
    *UNDOABLE,
    *LEAVES_TEXT,
    AuditAction.ERASE,
    AuditAction.HOLD,
    AuditAction.ARCHIVE,
)
"""The actions that explain the page. Redactions are read only for the messages on the page."""

MAX_ENTRIES = 200
"""Older entries of a session with more entries are not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAction:
    """An audit entry in words."""

    actor: str
    at: datetime
    reason: str
    url: str
    """The page of the entry; empty if the operator may not read the audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Messages that a removal hides."""

    text: str
    action: PastAction
    until: datetime | None
    """Until when a restore is possible; None if the messages were deleted."""
    pk: int
    """The audit entry of the removal."""


class History:
    """The newest actions on a session, read in one statement."""

    def __init__(
        self,
        model_admin: ReadOnlyAdmin,
        request: HttpRequest,
        session: Session,
        *,
        redacted: Collection[int] = (),
    ) -> None:
        """`redacted` are the seqs whose redaction is explained."""
        self._admin = model_admin
        self._may_audit = may_view(model_admin.admin_site, request, AuditEntry)
        self._session = session
        shown = Q(action__in=EXPLAINED)
        if redacted:
            shown |= Q(action=AuditAction.REDACT, from_seq__in=redacted)
        entries = AuditEntry.objects.filter(shown, session_pk=session.pk).order_by("-pk")
        self._entries = list(entries[:MAX_ENTRIES])
        """The newest first."""
        self.removals = not_undone(reversed(self._entries))[::-1]
        self.redactions = {
            entry.from_seq: self._past_action(entry)
            for entry in self._entries
            if entry.action == AuditAction.REDACT and entry.from_seq is not None
        }

    @property
    def is_erased(self) -> bool:
        """Whether an erasure of the session has started: its messages must not be shown."""
        return any(entry.action == AuditAction.ERASE for entry in self._entries)

    @property
    def has_unstored_text(self) -> bool:
        """Whether turns can contain text that no message contains."""
        return any(entry.action in LEAVES_TEXT for entry in self._entries)

    def newest(self, action: str) -> PastAction | None:
        """Return the newest action of this kind."""
        return next(
            (self._past_action(entry) for entry in self._entries if entry.action == action), None
        )

    def hides(self, ended_at: datetime | None) -> bool:
        """Return whether a clear or purge hides the text of a turn that ended at this time."""
        imports = (
            entry.created_at for entry in self._entries if entry.action == AuditAction.IMPORT
        )
        imported_at = next(imports, None)
        if ended_at is None:
            return False
        if imported_at is not None and ended_at < imported_at:
            return True
        return any(
            removal.action in (AuditAction.CLEAR, AuditAction.PURGE)
            and ended_at <= removal.created_at
            for removal in self.removals
        )

    def gaps(self) -> list[Gap]:
        """Return the removals that no restore has undone, the newest first."""
        return [
            Gap(
                text=_hidden(removal),
                action=self._past_action(removal),
                until=self._restorable_until(removal),
                pk=removal.pk,
            )
            for removal in self.removals
        ]

    def _restorable_until(self, removal: AuditEntry) -> datetime | None:
        start = removal.from_seq or 1
        is_stored = start >= self._session.stored_from
        if removal.action == AuditAction.WITHDRAW:
            is_stored = start in self._withdrawn_from
        return undo_until(removal) if is_stored and not self.is_erased else None

    @cached_property
    def _withdrawn_from(self) -> set[int]:
        """The first seq of each range that can be restored."""
        ranges = self._session.withdrawn.filter(emptied_to__isnull=True)
        return set(ranges.values_list("low", flat=True))

    def _past_action(self, entry: AuditEntry) -> PastAction:
        url = self._admin.url_of("auditentry_change", entry.pk) if self._may_audit else ""
        return PastAction(
            actor=visible(entry.actor_label),
            at=timezone.localtime(entry.created_at),
            reason=visible(entry.reason),
            url=url,
        )


def _hidden(removal: AuditEntry) -> str:
    count = removal.counts.get("messages", 0)
    if not count:
        return _("No message was removed")
    texts: dict[str, str] = {
        AuditAction.TRIM: ngettext(
            "%(n)s message was trimmed", "%(n)s messages were trimmed", count
        ),
        AuditAction.CLEAR: ngettext(
            "%(n)s message was cleared", "%(n)s messages were cleared", count
        ),
        AuditAction.PURGE: ngettext(
            "%(n)s message was purged", "%(n)s messages were purged", count
        ),
        AuditAction.WITHDRAW: ngettext(
            "%(n)s message was withdrawn", "%(n)s messages were withdrawn", count
        ),
    }
    numbers = {"n": count, "first": removal.from_seq, "last": removal.to_seq}
    return texts[removal.action] % numbers + " " + _("(%(first)s to %(last)s)") % numbers
