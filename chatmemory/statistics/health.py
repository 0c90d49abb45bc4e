"""What the page Health states about the daily figures."""

from __future__ import annotations

from django.utils.translation import gettext as _

from chatmemory.services.health.facts import FactValue
from chatmemory.statistics.watermark import read_watermark, turns_until


def read_counted_until() -> FactValue:
    """Return the time up to which turns are counted; a bad value before the first roll-up."""
    until = turns_until(read_watermark())
    if until is None:
        advice = _("Run %(command)s.") % {"command": "chatmemory_statistics"}
        return FactValue(value=_("never"), is_bad=True, advice=advice)
    return FactValue(value=until)
