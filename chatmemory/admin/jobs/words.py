"""The texts of actions, and the reasons why an action changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from chatmemory.admin.text import grouped
from chatmemory.errors import ChatMemoryError
from chatmemory.models import Job, JobAction

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

    Words = Mapping[str, Label]

EXPORT = "export"
"""The download of sessions: confirmed as an action, but no job."""

TITLES: Words = {**dict(JobAction.choices), EXPORT: _("Export")}

REASONS: Words = {
    "done": _("Done"),
    "purged": _("The conversation is purged."),
    "expired": _("The conversation has expired."),
    "held": _("The conversation is on hold."),
    "erased": _("The conversation is being erased."),
    "unchanged": _("There is nothing to change."),
    "idle": _("No reply is running."),
    "not_stuck": _("The reply is not stuck: its process responds."),
    "not_found": _("The conversation was already removed, or has expired."),
    "changed": _("The conversation has changed since the confirmation."),
    "changed_since": _("Changed again since that job."),
    "removed_since": _("A later removal followed; undo that one first."),
    "conflict": _(
        "The messages were deleted permanently, or another conversation uses the key now."
    ),
    "busy": _("A reply is running; stop it first."),
    "archived": _("The conversation is archived."),
    "unavailable": _("The conversation was locked for too long; try again."),
    "forbidden": _("The operator may not do this any more."),
    "internal": _("An unexpected error; the server's log has the details."),
}
"""By the code of a preview, of a job's item or of an error."""


def job_name(job: Job) -> str:
    """Return what all pages call a job: what it does, and to how many conversations."""
    text = ngettext("%(title)s: %(n)s conversation", "%(title)s: %(n)s conversations", job.total)
    return text % {"title": TITLES.get(job.action, job.action), "n": grouped(job.total)}


def skipped_by(job: Job) -> list[tuple[str, str, int]]:
    """Return the code, the text and the number of each reason why sessions were skipped."""
    return [(code, reason_of(code), number) for code, number in sorted(job.skipped.items())]


def reason_of(code: str) -> str:
    """Return the text of a code; the code itself if it has none."""
    return str(REASONS.get(code, code))


def error_text(error: ChatMemoryError) -> str:
    """Return the text of an error for operators: that of its code, unless it has one of its own."""
    own = str(error)
    return own if own != str(type(error)()) else str(REASONS.get(error.code, own))
