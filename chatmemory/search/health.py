"""What the page Health states about the index."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.utils.translation import gettext as _

from chatmemory.models import DatabaseToday, Session
from chatmemory.search.indexing import due_sessions
from chatmemory.services.health.facts import FactValue

MAX_EXAMINED: Final = 1_000
MAX_LAGGING: Final = 100
"""More sessions than this without a complete index are a bad value."""


def read_lag() -> FactValue:
    """Return how many of the sessions that were active since yesterday are not wholly indexed."""
    since = DatabaseToday() - timedelta(days=1)
    recent = Session.objects.active().filter(last_active_day__gte=since).order_by("-pk")
    lagging = len(due_sessions(list(recent.values_list("pk", flat=True)[:MAX_EXAMINED])))
    if lagging <= MAX_LAGGING:
        return FactValue(value=lagging)
    advice = _("Run %(command)s.") % {"command": "chatmemory_search"}
    return FactValue(value=lagging, is_bad=True, advice=advice)
