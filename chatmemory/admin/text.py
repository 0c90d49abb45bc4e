"""Text of users, prepared for display to operators; numbers and times as operators read them."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

JOINERS: Final = "\u200c\u200d"
"""Invisible characters that Persian words and emoji need."""

WEEK = timedelta(days=7)

_INVISIBLE = {
    point: f"⟦U+{point:04X}⟧"
    for point in chain(range(0x3000), range(0xFE00, 0x10000), range(0xE0000, 0xE0080))
    if unicodedata.category(chr(point)) in ("Cc", "Cf") and chr(point) not in "\t\n\r" + JOINERS
}


def number_of(text: str) -> int | None:
    """Return a whole number that each database can store; None if the text is no such number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def visible(text: str) -> str:
    """Replace invisible characters (direction changes, tags, controls) with visible marks."""
    return text.translate(_INVISIBLE)


def truncate(text: str, limit: int) -> tuple[str, bool]:
    """Return the first `limit` characters, made visible, and whether there are more."""
    return visible(text[:limit]), len(text) > limit


def clamped(text: str) -> SafeString:
    """Return a text, made visible, in HTML: a list shows two lines of it."""
    return format_html('<span class="chatmemory-clamped">{}</span>', visible(text))


def grouped(number: int) -> str:
    """Return a number with the separators of the locale."""
    return number_format(number, force_grouping=True)


def ago(at: datetime) -> SafeString:
    """Return a time in HTML: its age up to a week, then its day; the full time is the title."""
    local = timezone.localtime(at)
    age = datetime.now(UTC) - at
    if abs(age) < timedelta(minutes=1):  # the database's clock may be ahead
        text = _("just now")
    elif not timedelta(0) < age < WEEK:
        text = date_format(local, "SHORT_DATE_FORMAT")
    else:
        text = _("%(time)s ago") % {"time": duration(age)}
    full = date_format(local, "DATETIME_FORMAT")
    return format_html('<time datetime="{}" title="{}">{}</time>', local.isoformat(), full, text)


def duration(length: timedelta) -> str:
    """Return a duration in its largest unit, such as `12 s` or `3 days`."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 10:
        return _("%(number)s s") % {"number": number_format(round(seconds, 1), 1)}
    if seconds < 120:
        return _("%(number)s s") % {"number": int(seconds)}
    if seconds < 2 * 3600:
        return _("%(number)s min") % {"number": int(seconds // 60)}
    if seconds < 48 * 3600:
        return _("%(number)s h") % {"number": int(seconds // 3600)}
    days = int(seconds // 86400)
    return ngettext("%(number)s day", "%(number)s days", days) % {"number": days}
