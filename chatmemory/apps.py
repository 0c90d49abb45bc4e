"""The app, and what its start connects."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ChatMemoryConfig(AppConfig):
    """Connects the signals of the services to hub and runner."""

    name = "chatmemory"
    verbose_name = _("Chat memory")
    default_auto_field = "django.db.models.BigAutoField"
