"""The columns of the list of sessions."""

from __future__ import annotations

from datetime import UTC, datetime

from django.contrib import admin
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _

from chatmemory.access.actors import person_of
from chatmemory.admin.people.finding import is_person, person
from chatmemory.admin.sessions.listing import listed
from chatmemory.admin.states import State
from chatmemory.admin.text import duration, visible
from chatmemory.models import Session


class SessionColumns:
    """One method for each column that is not a field. A host may add methods and reorder them."""

    admin_site: admin.AdminSite

    @admin.display(description=_("session"))
    def name(self, session: Session) -> str:
        name = listed(session).name
        key = visible(session.key)
        html = format_html('<span class="chatmemory-name">{}</span>', name)
        if name == key:
            return html
        return html + format_html('<span class="chatmemory-key">{}</span>', key)

    @admin.display(description=_("owner"))
    def person(self, session: Session) -> str:
        """Link to the page of the person to whom the session belongs."""
        scope = person_of(session.removed_scope or session.scope)
        if not is_person(scope):
            return visible(scope)
        address = reverse(
            "admin:chatmemory_session_person",
            query={"scope": scope},
            current_app=self.admin_site.name,
        )
        return format_html('<a href="{}">{}</a>', address, person(scope, session.owner).label)

    @admin.display(description=_("state"), empty_value="")
    def state(self, session: Session) -> str:
        found = listed(session)
        if found.state is State.IDLE:
            return ""
        html = format_html(
            '<span class="chatmemory-state {}">{}</span>', found.state, found.state.label
        )
        if found.since is None:
            return html
        at = date_format(timezone.localtime(found.since), "DATETIME_FORMAT")
        age = format_html(
            '<span class="chatmemory-key" title="{}">{}</span>',
            at,
            duration(datetime.now(UTC) - found.since),
        )
        return html + age

    @admin.display(description=_("messages"))
    def message_count(self, session: Session) -> int:
        return session.message_count

    @admin.display(description=_("model"), empty_value="")
    def last_model(self, session: Session) -> str:
        return visible(listed(session).model)

    @admin.display(description=_("tags"), empty_value="")
    def tags(self, session: Session) -> str:
        return format_html_join(
            " ", '<span class="chatmemory-tag">{}</span>', ((tag,) for tag in listed(session).tags)
        )

    @admin.display(description=_("last message"))
    def last_message(self, session: Session) -> str | None:
        if session.last_message_at is None:
            return None
        at = timezone.localtime(session.last_message_at)
        day, hour = date_format(at, "SHORT_DATE_FORMAT"), date_format(at, "TIME_FORMAT")
        return format_html('{}<span class="chatmemory-key">{}</span>', day, hour)
