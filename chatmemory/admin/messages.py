"""Messages, registered so that the admin never deletes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.admin import register
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.models import Message, Session


@register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """Redirects to the transcript, where reading is audited.

    Django lets an operator delete rows of an unregistered model together with the rows that they
    refer to; registration makes it check the permission to delete messages.
    """

    view_codename = "view_transcript"

    def has_module_permission(self, request: HttpRequest) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        sessions = self._session_admin.get_queryset(request).order_by()
        return super().get_queryset(request).filter(session__in=sessions.values("pk"))

    def has_view_permission(self, request: HttpRequest, obj: Message | None = None) -> bool:
        session = None if obj is None else obj.session
        may_view_session = self._session_admin.permits(request, "view", obj=session)
        return may_view_session and super().has_view_permission(request, obj)

    def require(self, request: HttpRequest, *names: str, sessions: Iterable[Session] = ()) -> None:
        self._session_admin.require(request, "view", sessions=sessions)
        super().require(request, *names, sessions=sessions)

    @property
    def _session_admin(self) -> Any:
        """The registered `SessionAdmin`, which may be a subclass."""
        return self.admin_site.get_model_admin(Session)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        self.check_list(request)
        return redirect(self.url_of("session_changelist"))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        self.require(request, "view")
        message = self.find(request, object_id)
        return redirect(self.url_of("session_message", message.session_id, message.seq))
