"""The addresses of the pages of sessions and of people, below those of the sessions."""

from __future__ import annotations

from django.urls import URLPattern, path
from django.views import View

from chatmemory.admin.people.actions import EraseView, ExportView
from chatmemory.admin.people.pages import PeopleView, PersonView
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.sessions.conversation.neighbors import NextView, PreviousView
from chatmemory.admin.sessions.conversation.notes import NotesView
from chatmemory.admin.sessions.conversation.page import MessageView
from chatmemory.admin.sessions.conversation.redaction import RedactionView
from chatmemory.admin.sessions.conversation.search import SearchView
from chatmemory.admin.sessions.revealing import RevealView
from chatmemory.admin.sessions.tags import TagsView


def session_urls(model_admin: ReadOnlyAdmin) -> list[URLPattern]:
    """Return the pages of a session and of people, which find sessions in this admin's queryset."""

    def page(route: str, view: type[View], name: str) -> URLPattern:
        wrapped = model_admin.admin_site.admin_view(view.as_view(model_admin=model_admin))
        return path(route, wrapped, name=f"chatmemory_session_{name}")

    return [
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
    ]
