"""The texts of actions, and the reasons why an action changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _

from chatmemory.models import JobAction

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

    Words = Mapping[str, Label]

EXPORT = "export"
"""The download of sessions: confirmed as an action, but no job."""

TITLES: Words = {**dict(JobAction.choices), EXPORT: _("Export")}

EXPLANATIONS: Words = {
    JobAction.TRIM: _("Removes the oldest messages of each session and keeps the newest."),
    JobAction.CLEAR: _(
        "Removes all messages and keeps the empty session. A running reply is stopped and not "
        "stored; waiting messages are cancelled."
    ),
    JobAction.PURGE: _(
        "Removes the sessions and all their messages. A running reply is stopped and not stored; "
        "waiting messages are cancelled."
    ),
    JobAction.RESTORE: _(
        "Undoes the last removal of each session. A reply that the removal stopped does not run "
        "again."
    ),
    JobAction.HOLD: _("Forbids every removal from these sessions until they are released."),
    JobAction.RELEASE: _("Allows removals again, also those that retention rules are due to make."),
    JobAction.ARCHIVE: _(
        "Closes the sessions for new messages. Waiting messages are cancelled; a running reply "
        "continues."
    ),
    JobAction.UNARCHIVE: _("Opens the sessions for new messages."),
    JobAction.TAG: _("Adds a tag. Retention rules select sessions by their tags."),
    JobAction.UNTAG: _("Removes a tag. Retention rules select sessions by their tags."),
    JobAction.STOP: _(
        "Stops the running replies. The text so far is stored as an interrupted reply."
    ),
    JobAction.END: _(
        "Ends replies whose process no longer responds. The text so far is stored as an "
        "interrupted reply; a reply that has not started waits for another process."
    ),
    EXPORT: _("Downloads the sessions as a file. The audit records the export."),
}

REASONS: Words = {
    "done": _("Done"),
    "purged": _("The session is purged."),
    "expired": _("The session has expired."),
    "held": _("The session is on hold."),
    "erased": _("The session is being erased."),
    "unchanged": _("There is nothing to change."),
    "idle": _("No reply is running."),
    "not_stuck": _("The reply is not stuck: its process responds."),
    "not_found": _("The session was already removed, or has expired."),
    "changed": _("The session has changed since the confirmation."),
    "changed_since": _("Changed again since that job."),
    "removed_since": _("A later removal followed; undo that one first."),
    "conflict": _("The messages were deleted permanently, or another session uses the key now."),
    "busy": _("A reply is running; stop it first."),
    "archived": _("The session is archived."),
    "unavailable": _("The session was locked for too long; try again."),
    "forbidden": _("The operator may not do this any more."),
    "internal": _("An unexpected error; the server's log has the details."),
}
"""By the code of a preview, of a job's item or of an error."""


def reason_of(code: str) -> str:
    """Return the text of a code; the code itself if it has none."""
    return str(REASONS.get(code, code))
