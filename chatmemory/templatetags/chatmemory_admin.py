"""Filters of the templates of the console.

Django imports this module also in a project without its admin, so the functions import ours.
"""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()


@register.filter
def ago(at: datetime | None) -> SafeString | str:
    """Return a time as its age; a dash without one."""
    from chatmemory.admin import text

    return "–" if at is None else text.ago(at)  # noqa: RUF001  # a dash


@register.filter
def visible(value: object) -> str:
    """Return a text of a user with its invisible characters as marks; a dash for None."""
    from chatmemory.admin import text

    return "–" if value is None else text.visible(str(value))  # noqa: RUF001  # a dash


@register.filter
def grouped(number: int) -> str:
    """Return a number with the separators of the locale."""
    from chatmemory.admin import text

    return text.grouped(number)


@register.filter
def isolated(name: str) -> SafeString | str:
    """Return a name in HTML that does not change the direction of the sentence around it."""
    return format_html("<bdi>{}</bdi>", name) if name else ""
