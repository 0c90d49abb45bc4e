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
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _
from django.views import View

from chatmemory.admin.jobs.available import Offer, available_actions
from chatmemory.admin.jobs.selection import MAX_NAMED
from chatmemory.admin.jobs.urls import job_urls
from chatmemory.admin.jobs.words import TITLES
from chatmemory.admin.people.acts import EraseView, ExportView
from chatmemory.admin.people.pages import PeopleView, PersonView
from chatmemory.admin.privacy import title_of
from chatmemory.admin.readonly import LIST_FILTERS, ReadOnlyAdmin
from chatmemory.admin.sessions.columns import SessionColumns
from chatmemory.admin.sessions.conversation.neighbors import NextView, PreviousView
from chatmemory.admin.sessions.conversation.notes import NotesView
from chatmemory.admin.sessions.conversation.page import ConversationView, MessageView
from chatmemory.admin.sessions.conversation.redaction import RedactionView
from chatmemory.admin.sessions.conversation.search import SearchView
from chatmemory.admin.sessions.filters import FILTERS
from chatmemory.admin.sessions.listing import SessionChangeList
from chatmemory.admin.sessions.permissions import SessionPermissions
from chatmemory.admin.sessions.revealing import RevealView
from chatmemory.admin.sessions.search import MAX_SEARCH_CHARS, conditions, matching
from chatmemory.admin.sessions.tags import TagsView
from chatmemory.admin.text import number_of
from chatmemory.models import Session, SessionQuerySet
from chatmemory.services.jobs.actions import permission_of


@admin.register(Session)
class SessionAdmin(SessionColumns, SessionPermissions, ReadOnlyAdmin):
    """Lists sessions, the last active first; without a filter, no purged or expired ones.

    To restrict operators to some sessions, override `get_queryset`.
    """

    view_codename = "view_session"
    list_display = (
        "name",
        "state",
        "person",
        "message_count",
        "tokens",
        "last_model",
        "tags",
        "last_message",
    )
    list_filter = FILTERS
    list_select_related = ("owner",)
    # First by the day, because only the day has an index.
    ordering = ("-last_active_day", "-last_message_at", "-pk")
    search_fields = ("key",)
    search_help_text = _(
        "Search by the start of a key or title, a number, a scope such as user:7, or a user."
    )

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
        if not term:
            return queryset, False
        return matching(queryset, self.search_conditions(request, term)), False

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
            return redirect(f"{self.url_of('session_act', name)}?{filters.urlencode()}")
        pks = sessions.values_list("pk", flat=True)[:MAX_NAMED]
        kept = [(LIST_FILTERS, request.GET.urlencode())] if request.GET else []
        query = urlencode([*(("session", pk) for pk in pks), *kept])
        return redirect(f"{self.url_of('session_act', name)}?{query}")

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
        def page(route: str, view: type[View], name: str) -> URLPattern:
            wrapped = self.admin_site.admin_view(view.as_view(model_admin=self))
            return path(route, wrapped, name=f"chatmemory_session_{name}")

        return [
            *job_urls(self),
            page("people/", PeopleView, "people"),
            page("person/", PersonView, "person"),
            page("person/export/", ExportView, "person_export"),
            page("person/erase/", EraseView, "person_erase"),
            page("<int:pk>/reveal/", RevealView, "reveal"),
            page("<int:pk>/tags/", TagsView, "tags"),
            page("<int:pk>/messages/<int:seq>/", MessageView, "message"),
            page("<int:pk>/messages/<int:seq>/redact/", RedactionView, "redact"),
            page("<int:pk>/turns/<int:turn>/redact/", RedactionView, "redact_turn"),
            page("<int:pk>/search/", SearchView, "search"),
            page("<int:pk>/notes/", NotesView, "notes"),
            page("<int:pk>/previous/", PreviousView, "previous"),
            page("<int:pk>/next/", NextView, "next"),
            *super().get_urls(),
        ]


def _to_page(
    name: str, model_admin: SessionAdmin, request: HttpRequest, sessions: SessionQuerySet
) -> HttpResponse:
    """Perform an action of the list, in the form in which Django calls it."""
    return model_admin.confirm(name, request, sessions)
