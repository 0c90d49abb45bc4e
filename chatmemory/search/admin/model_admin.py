"""Registers the page of the search in the admin, and its permission."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.sections import Section, register_section
from chatmemory.admin.sessions.model_admin import SessionAdmin
from chatmemory.conf import settings
from chatmemory.models import Session
from chatmemory.search.admin.page import SearchView
from chatmemory.search.models import SearchBlock

register_section(
    Section(
        label=_("Search in messages…"),
        page="chatmemory_search_searchblock_changelist",
        model=SearchBlock,
        of_filters=True,
    )
)


@admin.register(SearchBlock)
class SearchAdmin(ReadOnlyAdmin):
    """Searches words in the messages of the conversations that the list's filters select.

    The `SessionAdmin` of the same site decides which conversations an operator can search. Blocks
    have no pages.
    """

    view_codename = "search_content"

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the operator may search words, and read the transcripts that have them."""
        sessions = self.session_admin()
        is_readable = sessions is not None and settings.TRANSCRIPTS != "off"
        return (
            is_readable
            and super().has_view_permission(request, obj)
            and sessions.permits(request, "view", "view_transcript")
        )

    def session_admin(self) -> Any:
        """Return the ModelAdmin of sessions on this site, or None."""
        is_registered = self.admin_site.is_registered(Session)
        found = self.admin_site.get_model_admin(Session) if is_registered else None
        return found if isinstance(found, SessionAdmin) else None

    def get_urls(self) -> list[URLPattern]:
        wrapped = self.admin_site.admin_view(self.changelist_view)
        return [path("", wrapped, name="chatmemory_search_searchblock_changelist")]

    @method_decorator(sensitive_post_parameters("words", "token"))
    @method_decorator(sensitive_variables())  # also those of all functions that it calls
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        sessions = self.session_admin()
        if sessions is None:
            raise Http404
        sessions.require(request, "view", "view_transcript")
        self.check_list(request)
        view: Any = SearchView.as_view(model_admin=sessions)
        page: HttpResponse = view(request)
        return page
