"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig


class OwnStatisticsConfig(AppConfig):
    """An app with the label `statistics`."""

    name = "tests.own_statistics"
    label = "statistics"
    default_auto_field = "django.db.models.BigAutoField"
