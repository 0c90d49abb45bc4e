"""What an operator can do with a session: the menu of its page, in groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.jobs.available import Offer, available_actions
from chatmemory.admin.jobs.words import EXPORT
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.models import JobAction, Session

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

DANGEROUS = (JobAction.CLEAR, JobAction.PURGE)
"""Actions whose entries warn."""

TAGS = "tags"
"""The page on which tags are added and removed: it replaces the two actions."""

GROUPS = (
    (
        *(JobAction.TRIM, TAGS, JobAction.ARCHIVE, JobAction.UNARCHIVE),
        *(JobAction.HOLD, JobAction.RELEASE),
    ),
    (JobAction.STOP, JobAction.END),
    (JobAction.RESTORE, JobAction.CLEAR, JobAction.PURGE),
)
"""The entries, in the order of the menu."""

EFFECTS: Mapping[str, Label] = {
    JobAction.TRIM: _("Removes the oldest messages"),
    TAGS: _("Retention rules select by tags"),
    JobAction.ARCHIVE: _("No new messages"),
    JobAction.UNARCHIVE: _("Allows new messages"),
    JobAction.HOLD: _("Nothing can be removed"),
    JobAction.RELEASE: _("Removals are allowed again"),
    JobAction.STOP: _("Stores the text so far"),
    JobAction.END: _("Its process does not respond"),
    JobAction.RESTORE: _("Undoes the last removal"),
    JobAction.CLEAR: _("Removes all messages, keeps the conversation"),
    JobAction.PURGE: _("Removes the conversation"),
}
"""What each entry does, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of the menu. A disabled one states why the action would change nothing now."""

    name: str
    label: Label
    url: str
    text: Label
    is_disabled: bool = False
    is_dangerous: bool = False


class Menu:
    """The actions that the operator may perform on a session, read in one statement."""

    def __init__(self, model_admin: ReadOnlyAdmin, request: HttpRequest, session: Session) -> None:
        offers = available_actions(model_admin, request, session)
        self._offers = {offer.action: offer for offer in offers}
        self._tags_url = ""
        if model_admin.permits(request, "tag_session", obj=session):
            self._tags_url = model_admin.url_of("session_tags", session.pk)

    @cached_property
    def groups(self) -> list[list[Entry]]:
        """The entries, without empty groups."""
        found = [[entry for name in group if (entry := self._entry(name))] for group in GROUPS]
        return [group for group in found if group]

    @property
    def export_url(self) -> str:
        """The URL of the page that exports the session; empty if the operator may not."""
        return self.url_of(EXPORT)

    def url_of(self, name: str) -> str:
        """Return the URL of an action; empty if it is not permitted, or would change nothing."""
        offer = self._offers.get(name)
        return "" if offer is None or offer.disabled else offer.url

    def _entry(self, name: str) -> Entry | None:
        if name == TAGS:
            if not self._tags_url:
                return None
            return Entry(name=name, label=_("Tags…"), url=self._tags_url, text=EFFECTS[name])
        offer: Offer | None = self._offers.get(name)
        if offer is None:
            return None
        return Entry(
            name=name,
            label=format_html("{}…", offer.label),
            url=offer.url,
            text=offer.disabled or EFFECTS[name],
            is_disabled=bool(offer.disabled),
            is_dangerous=name in DANGEROUS,
        )
