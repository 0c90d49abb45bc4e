"""Code, tables and formulas, which scroll on their own and which the keyboard must reach."""

from __future__ import annotations

from django.utils.html import escape
from django.utils.translation import gettext, gettext_noop

CODE = gettext_noop("Code")
TABLE = gettext_noop("Table")
FORMULA = gettext_noop("Formula")

ATTRIBUTES = {"tabindex", "role", "aria-label"}


def attributes(label: str) -> str:
    """Return the attributes of an element that scrolls, with this label in the current language."""
    # A group, since each `region` would become a landmark of the page.
    return f'tabindex="0" role="group" aria-label="{escape(gettext(label))}"'


def is_allowed(name: str, value: str) -> bool:
    """Whether `attributes` returns this value of an attribute."""
    if name == "aria-label":
        return value in {gettext(label) for label in (CODE, TABLE, FORMULA)}
    return value == {"tabindex": "0", "role": "group"}[name]
