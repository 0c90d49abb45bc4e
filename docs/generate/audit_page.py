"""Writes the last section of docs/howto/audit.md: the actions of the core and of the search."""

from __future__ import annotations

from pathlib import Path

import django
from django.conf import settings

if not settings.configured:  # run as a script
    apps = ["django.contrib.contenttypes", "django.contrib.auth", "chatmemory"]
    settings.configure(INSTALLED_APPS=apps)
    django.setup()

from chatmemory.models import AuditAction  # the models need the settings
from chatmemory.search.audit import Action

PAGE = Path(__file__).resolve().parents[1] / "howto/audit.md"
HEADING = "\n## The actions\n"
INTRO = """
The codes in `action`, and what the admin shows for them. `python docs/generate/audit_page.py`
writes this list from the code.

"""


def page() -> str:
    """Return the page as Markdown: what is written by hand, then the actions in source order."""
    by_hand, _, _ = PAGE.read_text().partition(HEADING)
    actions = [f"`{action.value}` ({action.label})" for action in AuditAction]
    of_search = [f"`{action.value}` ({action.label}, by `chatmemory.search`)" for action in Action]
    listed = ",\n".join([*actions, *of_search])
    return f"{by_hand}{HEADING}{INTRO}{listed}.\n"


if __name__ == "__main__":
    PAGE.write_text(page())
