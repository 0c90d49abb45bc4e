"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class SearchConfig(AppConfig):
    """Registers what the core calls and records, and follows the signals of new messages."""

    name = "chatmemory.search"
    label = "chatmemory_search"
    verbose_name = _("Chat search")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # These import models, which Django loads before it calls this.
        from chatmemory import signals
        from chatmemory.conf import register_settings
        from chatmemory.derived import before_question
        from chatmemory.live.sweep import register_sweep
        from chatmemory.management.roles import extend_role
        from chatmemory.search import checks, health, pending  # noqa: F401  # registers the checks
        from chatmemory.search.audit import Action
        from chatmemory.search.conf import SearchSettings
        from chatmemory.search.indexing import Task
        from chatmemory.search.recall import recall
        from chatmemory.services.audit.actions import register_audit_action
        from chatmemory.services.health.facts import register_fact
        from chatmemory.services.maintenance.tasks import register_task

        register_settings(SearchSettings)
        register_task(Task.SEARCH, days=1, command="chatmemory_search")
        register_fact(
            self.label, label=_("Chats without a complete search index"), read=health.read_lag
        )
        before_question(recall)
        register_sweep(pending.sweep_search)
        register_audit_action(Action.SEARCH)
        extend_role("Chat lead", "chatmemory_search.search_content")
        signals.messages_appended.connect(pending.note_appended, dispatch_uid=self.label)
        signals.action_recorded.connect(pending.note_action, dispatch_uid=self.label)
