"""The admin of the host's table."""

from __future__ import annotations

from django.contrib import admin

from tests.own_statistics.models import DailyTurns

admin.site.register(DailyTurns)
