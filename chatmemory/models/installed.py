"""The models of the app and of its optional apps."""

from __future__ import annotations

from django.apps import apps
from django.db.models import Model


def installed_models() -> list[type[Model]]:
    """Return the models of the app and of its installed optional apps."""
    own = [app for app in apps.get_app_configs() if app.name.partition(".")[0] == "chatmemory"]
    return [model for app in own for model in app.get_models()]
