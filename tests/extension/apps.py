"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig

from chatmemory.management.roles import extend_role
from chatmemory.services.health.facts import register_fact


class ExtensionConfig(AppConfig):
    """Registers a task, a fact, a counter, an action of the audit and a permission."""

    name = "tests.extension"
    label = "extension"

    def ready(self) -> None:
        from chatmemory.services.audit.actions import register_audit_action
        from chatmemory.services.maintenance.tasks import register_task
        from chatmemory.services.removal.deletions import DeletionCounter, register_counter
        from tests.extension import calls

        register_task(calls.Task.SWEEP, days=2, command="extension_sweep")
        register_audit_action(calls.Recorded.SWEEP)
        register_fact("extension", label="Dust", read=calls.read_dust)
        register_counter("extension", DeletionCounter(count=calls.count, prepare=calls.prepare))
        extend_role("Chat auditor", "auth.view_user")
