"""The list and the page of audit entries."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.filters import ActionFilter
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.text import visible
from chatmemory.models import AuditEntry

REASON_WORDS = 20


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Lists audit entries, the newest first."""

    view_codename = "view_audit"
    list_display = ("created_at", "action", "session", "messages", "actor", "short_reason")
    list_filter = (ActionFilter,)
    ordering = ("-pk",)
    fields = (
        "created_at",
        "action",
        "session",
        "from_seq",
        "to_seq",
        "counts",
        "actor",
        "whole_reason",
        "key_hash",
    )
    readonly_fields = fields

    @admin.display(description=_("session"))
    def session(self, entry: AuditEntry) -> SafeString | Promise | None:
        if entry.session_pk is None and entry.action == "refused":
            return None
        if entry.session_pk is None:
            return _("all sessions of a person") if entry.key_hash else _("all sessions")
        address = reverse("admin:chatmemory_session_change", args=[entry.session_pk])
        return format_html('<a href="{}">{}</a>', address, entry.session_pk)

    @admin.display(description=_("messages"))
    def messages(self, entry: AuditEntry) -> Any:
        return entry.counts.get("messages")

    @admin.display(description=_("actor"))
    def actor(self, entry: AuditEntry) -> str:
        return f"{visible(entry.actor_label)} ({entry.actor_kind})"

    @admin.display(description=_("reason"))
    def short_reason(self, entry: AuditEntry) -> str:
        return Truncator(visible(entry.reason)).words(REASON_WORDS)

    @admin.display(description=_("reason"))
    def whole_reason(self, entry: AuditEntry) -> str:
        return visible(entry.reason)
