"""The list and the page of sessions, with links to their transcripts and removals."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.views import View

from chatmemory.admin.filters import ActivityFilter, ScopeFilter, StateFilter
from chatmemory.admin.readonly import ReadOnlyAdmin, operator
from chatmemory.admin.removal import MAX_SESSIONS, ClearView, PurgeView, TrimView
from chatmemory.admin.states import State, state_of
from chatmemory.admin.tags import TagsView
from chatmemory.admin.text import visible
from chatmemory.admin.transcript import MessageView, TranscriptView
from chatmemory.models import Feedback, Session, SessionQuerySet
from chatmemory.services.audit import readings
from chatmemory.services.tags import tags_of

MAX_SEARCH_CHARS = 256


@admin.register(Session)
class SessionAdmin(ReadOnlyAdmin):
    """Lists sessions, the last active first; without a filter, no purged or expired ones.

    To restrict operators to some sessions, override `get_queryset`.
    """

    view_codename = "view_session"
    list_display = ("name", "state", "owner", "message_count", "tokens", "last_message")
    list_filter = (StateFilter, ActivityFilter, ScopeFilter)
    list_select_related = ("owner",)
    # First by the day, because only the day has an index.
    ordering = ("-last_active_day", "-last_message_at", "-pk")
    search_fields = ("key",)
    search_help_text = _("Search by the start of a key or username, or by part of a title.")
    actions = ("trim", "clear", "purge")
    fieldsets = (
        (None, {"fields": ("title", "key", "scope", "owner", "state_label", "tags")}),
        (
            _("Messages"),
            {
                "fields": (
                    "message_count",
                    "first_seq",
                    "last_seq",
                    "tokens",
                    "running",
                    "waiting",
                    "feedback",
                )
            },
        ),
        (
            _("Times"),
            {
                "fields": (
                    "created_at",
                    "last_message_at",
                    "expires_at",
                    "archived_at",
                    "pinned_at",
                    "held_at",
                    "removed_at",
                )
            },
        ),
    )
    transcript_fieldset = (_("For the model"), {"fields": ("instructions", "metadata")})
    """Conversation content: requires the permission for transcripts, and reading it is audited."""
    readonly_fields = ("state_label", "tags", "message_count", "feedback")

    class Media:
        css = {"all": ["chatmemory/admin.css"]}  # noqa: RUF012  # Django's form

    @admin.display(description=_("session"))
    def name(self, session: Session) -> str:
        name = '<span class="chatmemory-name">{}</span>'
        key = visible(session.key)
        if not session.title:
            return format_html(name, key)
        name_and_key = name + '<span class="chatmemory-key">{}</span>'
        return format_html(name_and_key, visible(session.title), key)

    @admin.display(description=_("messages"))
    def message_count(self, session: Session) -> int:
        return session.message_count

    @admin.display(description=_("last message"))
    def last_message(self, session: Session) -> str | None:
        if session.last_message_at is None:
            return None
        at = timezone.localtime(session.last_message_at)
        day, hour = date_format(at, "SHORT_DATE_FORMAT"), date_format(at, "TIME_FORMAT")
        return format_html('{}<span class="chatmemory-key">{}</span>', day, hour)

    @admin.display(description=_("state"))
    def state_label(self, session: Session) -> str:
        return str(state_of(session).label)

    @admin.display(description=_("tags"))
    def tags(self, session: Session) -> str:
        return visible(", ".join(sorted(tags_of(session)))) or self.get_empty_value_display()

    @admin.display(description=_("feedback"))
    def feedback(self, session: Session) -> str:
        counts = session.feedback.all().counts()
        good, bad = (counts.get(value, 0) for value in (Feedback.Value.GOOD, Feedback.Value.BAD))
        return str(_("%(good)s good, %(bad)s bad") % {"good": good, "bad": bad})

    @admin.display(description=_("state"), empty_value="")
    def state(self, session: Session) -> str:
        state = state_of(session)
        if state is State.IDLE:
            return ""
        return format_html('<span class="chatmemory-state {}">{}</span>', state, state.label)

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        term = search_term.strip()[:MAX_SEARCH_CHARS]
        if not term:
            return queryset, False
        users = get_user_model()
        owners = users.objects.filter(**{f"{users.USERNAME_FIELD}__startswith": term})
        found = Q(key__startswith=term) | Q(title__icontains=term) | Q(owner__in=owners)
        return queryset.filter(found), False

    def has_view_transcript_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.view_transcript")

    def has_trim_history_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.trim_history")

    def has_purge_history_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.purge_history")

    def has_tag_session_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.tag_session")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if self.permits(request, "view_transcript", obj=obj):
            return (*self.fieldsets, self.transcript_fieldset)
        return self.fieldsets

    @admin.action(description=_("Trim…"), permissions=["trim_history"])
    def trim(self, request: HttpRequest, queryset: SessionQuerySet) -> HttpResponse | None:
        return self._confirm("trim", request, queryset)

    @admin.action(description=_("Clear…"), permissions=["trim_history"])
    def clear(self, request: HttpRequest, queryset: SessionQuerySet) -> HttpResponse | None:
        return self._confirm("clear", request, queryset)

    @admin.action(description=_("Purge…"), permissions=["purge_history"])
    def purge(self, request: HttpRequest, queryset: SessionQuerySet) -> HttpResponse | None:
        return self._confirm("purge", request, queryset)

    def _confirm(
        self, name: str, request: HttpRequest, queryset: SessionQuerySet
    ) -> HttpResponse | None:
        """Redirect to the page that previews and confirms the removal."""
        pks = list(queryset.values_list("pk", flat=True)[: MAX_SESSIONS + 1])
        if len(pks) > MAX_SESSIONS:
            error = _("Select at most %(max)s sessions.") % {"max": MAX_SESSIONS}
            self.message_user(request, error, messages.ERROR)
            return None
        query = urlencode([("session", pk) for pk in pks])
        return redirect(f"{self.url_of(f'session_{name}')}?{query}")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        session = self.find(request, object_id)
        if self.permits(request, "view_transcript", obj=session):
            readings.record_reading(session=session, by=operator(request))
        return response

    def get_urls(self) -> list[URLPattern]:
        def page(route: str, view: type[View], name: str) -> URLPattern:
            wrapped = self.admin_site.admin_view(view.as_view(model_admin=self))
            return path(route, wrapped, name=f"chatmemory_session_{name}")

        return [
            page("trim/", TrimView, "trim"),
            page("clear/", ClearView, "clear"),
            page("purge/", PurgeView, "purge"),
            page("<int:pk>/tags/", TagsView, "tags"),
            page("<int:pk>/transcript/", TranscriptView, "transcript"),
            page("<int:pk>/transcript/<int:seq>/", MessageView, "message"),
            *super().get_urls(),
        ]
