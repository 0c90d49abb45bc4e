"""The list and the page of sessions, with links to their conversations and removals."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.jobs.available import Offer, available_actions
from chatmemory.admin.jobs.base import BACK
from chatmemory.admin.jobs.selection import MAX_NAMED
from chatmemory.admin.jobs.urls import job_urls
from chatmemory.admin.jobs.words import TITLES
from chatmemory.admin.privacy import title_of
from chatmemory.admin.readonly import MAX_DECIDED, ReadOnlyAdmin
from chatmemory.admin.sections import SESSIONS
from chatmemory.admin.sessions.columns import SessionColumns
from chatmemory.admin.sessions.conversation.page import ConversationView
from chatmemory.admin.sessions.filters import FILTERS
from chatmemory.admin.sessions.listing import SessionChangeList
from chatmemory.admin.sessions.permissions import SessionPermissions
from chatmemory.admin.sessions.search import MAX_SEARCH_CHARS, conditions, matching
from chatmemory.admin.sessions.urls import session_urls
from chatmemory.admin.text import number_of
from chatmemory.models import Session, SessionQuerySet
from chatmemory.services.jobs.actions import permission_of


@admin.register(Session)
class SessionAdmin(SessionColumns, SessionPermissions, ReadOnlyAdmin):
    """Lists sessions, the last active first; without a filter, no purged, expired or unused ones.

    To restrict operators to some sessions, override `get_queryset`.
    """

    view_codename = "view_session"
    section = SESSIONS
    list_display = ("name", "person", "state", "message_count", "last_message")
    list_filter = FILTERS
    list_select_related = ("owner",)
    # First by the day, because only the day has an index.
    ordering = ("-last_active_day", "-last_message_at", "-pk")
    search_fields = ("key",)
    search_help_text = _("Start of a title or key, ID, scope, or user")

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the session with its title as the operator sees it, for Django's own pages."""
        session = super().get_object(request, object_id, from_field)
        if session is not None:
            session.title = title_of(request, session)
        return session

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[SessionChangeList]:
        return SessionChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        term = search_term.strip()[:MAX_SEARCH_CHARS]
        found = matching(queryset, self.search_conditions(request, term)) if term else queryset
        is_completion = getattr(request.resolver_match, "url_name", "") == "autocomplete"
        if is_completion and self.decides_by_row("view"):
            # Django's autocompletion does not ask for the permission of each row, as the list does.
            rows = found.defer("instructions", "metadata")[:MAX_DECIDED]
            pks = [row.pk for row in rows if self.permits(request, "view", obj=row)]
            found = queryset.filter(pk__in=pks)
        return found, False

    def search_conditions(self, request: HttpRequest, term: str) -> Iterable[Q]:
        """Return the conditions of a search; a host may add one, which needs an index."""
        return conditions(self, request, term)

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the actions of the list, each of which leads to its page.

        Only Django 6.1 and later pass `action_location`: they also have actions on a row's page,
        where this ModelAdmin has buttons of its own.
        """
        own = {
            name: (partial(_to_page, name), name, f"{title}…")
            for name, title in TITLES.items()
            if self.permits(request, permission_of(name))
        }
        return {**own, **super().get_actions(request)}

    def permission_for_action(self, name: str) -> str:
        return permission_of(name) if name in TITLES else super().permission_for_action(name)

    def confirm(self, name: str, request: HttpRequest, sessions: SessionQuerySet) -> HttpResponse:
        """Redirect to the page that previews an action on the selected sessions."""
        if request.POST.get("select_across") == "1":
            filters = request.GET.copy()
            filters["all"] = "1"
            return redirect(f"{self.url_of('session_action', name)}?{filters.urlencode()}")
        pks = sessions.values_list("pk", flat=True)[:MAX_NAMED]
        came_from = (BACK, request.get_full_path())
        query = urlencode([*(("session", pk) for pk in pks), came_from])
        return redirect(f"{self.url_of('session_action', name)}?{query}")

    def available_actions(self, request: HttpRequest, session: Session) -> list[Offer]:
        """Return the actions that an operator may perform on a session."""
        return available_actions(self, request, session)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show the conversation."""
        view: Any = ConversationView.as_view(model_admin=self)
        page: HttpResponse = view(request, pk=number_of(unquote(object_id)) or 0)
        return page

    def get_urls(self) -> list[URLPattern]:
        return [*job_urls(self), *session_urls(self), *super().get_urls()]


def _to_page(
    name: str, model_admin: SessionAdmin, request: HttpRequest, sessions: SessionQuerySet
) -> HttpResponse:
    """Perform an action of the list, in the form in which Django calls it."""
    return model_admin.confirm(name, request, sessions)
