"""The texts of actions, and the reasons why an action changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

    Words = Mapping[str, Label]

TITLES: Words = {
    "trim": _("Trim"),
    "clear": _("Clear"),
    "purge": _("Purge"),
    "restore": _("Restore"),
    "hold": _("Put on hold"),
    "release": _("Release"),
    "archive": _("Archive"),
    "unarchive": _("Unarchive"),
    "tag": _("Add a tag"),
    "untag": _("Remove a tag"),
    "stop": _("Stop reply"),
    "end": _("End stuck reply"),
    "export": _("Export"),
}

EXPLANATIONS: Words = {
    "trim": _("Removes the oldest messages of each session and keeps the newest."),
    "clear": _(
        "Removes all messages and keeps the empty session. A running reply is stopped and not "
        "stored; waiting messages are cancelled."
    ),
    "purge": _(
        "Removes the sessions and all their messages. A running reply is stopped and not stored; "
        "waiting messages are cancelled."
    ),
    "restore": _(
        "Undoes the last removal of each session. A reply that the removal stopped does not run "
        "again."
    ),
    "hold": _("Forbids every removal from these sessions until they are released."),
    "release": _("Allows removals again, also those that retention rules are due to make."),
    "archive": _(
        "Closes the sessions for new messages. Waiting messages are cancelled; a running reply "
        "continues."
    ),
    "unarchive": _("Opens the sessions for new messages."),
    "tag": _("Adds a tag. Retention rules select sessions by their tags."),
    "untag": _("Removes a tag. Retention rules select sessions by their tags."),
    "stop": _("Stops the running replies. The text so far is stored as an interrupted reply."),
    "end": _(
        "Ends replies whose process no longer responds. The text so far is stored as an "
        "interrupted reply; a reply that has not started waits for another process."
    ),
    "export": _("Downloads the sessions as a file. The audit records the export."),
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
