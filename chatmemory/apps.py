"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ChatMemoryConfig(AppConfig):
    """Registers the system checks and connects the receivers at start-up."""

    name = "chatmemory"
    verbose_name = _("Chat memory")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # These import models, which Django loads before it calls this.
        from chatmemory import checks, receivers  # noqa: F401  # registers the checks
        from chatmemory.api import checks as api_checks  # noqa: F401  # registers them
        from chatmemory.pages import checks as page_checks  # noqa: F401  # registers them

        receivers.connect()
