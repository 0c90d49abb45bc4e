"""The columns of the list of sessions."""

from __future__ import annotations

from django.contrib import admin
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from chatmemory.access.actors import person_of
from chatmemory.admin.people.finding import is_person, person
from chatmemory.admin.sessions.listing import listed
from chatmemory.admin.text import ago, grouped, visible
from chatmemory.models import Session


class SessionColumns:
    """One method for each column that is not a field. A host may add methods and reorder them."""

    admin_site: admin.AdminSite

    @admin.display(description=_("conversation"))
    def name(self, session: Session) -> str:
        """Show the name and the tags; below them the model, the tokens and the feedback."""
        return render_to_string("admin/chatmemory/session/listed.html", {"session": session})

    @admin.display(description=_("person"))
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
        label = person(scope, session.owner).label
        return format_html('<a href="{0}" title="{1}">{1}</a>', address, label)

    @admin.display(description=_("state"), empty_value="")
    def state(self, session: Session) -> str:
        return render_to_string("admin/chatmemory/session/state.html", {"listed": listed(session)})

    @admin.display(description=_("messages"))
    def message_count(self, session: Session) -> str:
        return grouped(session.message_count)

    @admin.display(description=_("last message"))
    def last_message(self, session: Session) -> str | None:
        return None if session.last_message_at is None else ago(session.last_message_at)
