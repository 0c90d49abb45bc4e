"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class StatisticsConfig(AppConfig):
    """Registers what the core calls: the task, its line on Health, the counter, the permission."""

    name = "chatmemory.statistics"
    label = "chatmemory_statistics"
    verbose_name = _("Chat statistics")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # These import models, which Django loads before it calls this.
        from chatmemory.management.roles import extend_role
        from chatmemory.services.health.facts import register_fact
        from chatmemory.services.maintenance.tasks import register_task
        from chatmemory.services.removal.deletions import DeletionCounter, register_counter
        from chatmemory.statistics import counting, health
        from chatmemory.statistics.roll_up import Task

        register_task(Task.STATISTICS, days=1, command="chatmemory_statistics")
        register_fact(self.label, label=_("Daily figures up to"), read=health.read_counted_until)
        register_counter(
            self.label,
            DeletionCounter(count=counting.count_before_deletion, prepare=counting.prepare),
        )
        for role in ("Chat lead", "Chat auditor"):
            extend_role(role, "chatmemory_statistics.view_statistics")
