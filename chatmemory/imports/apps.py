"""The Django app. It has no tables: a session names its origin in columns of the core."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _


class ImportsConfig(AppConfig):
    """Registers what `chatmemory_import` calls for files of other products."""

    name = "chatmemory.imports"
    label = "chatmemory_imports"
    verbose_name = _("Imports of chats")

    def ready(self) -> None:
        # These import models, which Django loads before it calls this.
        from chatmemory.formats import READERS

        try:
            from chatmemory.imports.files import PRODUCTS, READER
        except ModuleNotFoundError as error:
            if error.name != "ijson":
                raise
            advice = 'pip install "django-chatmemory[imports]", or remove it from INSTALLED_APPS'
            raise ImproperlyConfigured(f"chatmemory.imports needs ijson: {advice}.") from error

        READERS.update(dict.fromkeys(PRODUCTS, READER))
