"""Messages: registered so that nothing can be deleted past them, read in their transcript."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect

from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.models import Message


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """Leads to the transcript, where reading leaves a trace.

    Were it not registered, whoever may delete what messages point to could delete them with it.
    """

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.view_transcript")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return redirect("admin:chatmemory_session_changelist")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        message = self.get_object(request, object_id)  # of what is no number, none
        if message is None:
            raise Http404
        return redirect("admin:chatmemory_session_message", message.session_id, message.seq)
