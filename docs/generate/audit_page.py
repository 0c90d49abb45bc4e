"""Writes the last section of docs/howto/audit.md, the list of actions, from `AuditAction`."""

from __future__ import annotations

from pathlib import Path

import django
from django.conf import settings

if not settings.configured:  # run as a script
    apps = ["django.contrib.contenttypes", "django.contrib.auth", "chatmemory"]
    settings.configure(INSTALLED_APPS=apps)
    django.setup()

from chatmemory.models import AuditAction  # the models need the settings

PAGE = Path(__file__).resolve().parents[1] / "howto/audit.md"
HEADING = "\n## The actions\n"
INTRO = """
The codes in `action`, and what the admin shows for them. `python docs/generate/audit_page.py`
writes this list from `AuditAction`.

"""


def page() -> str:
    """Return the page as Markdown: what is written by hand, then the actions in source order."""
    by_hand, _, _ = PAGE.read_text().partition(HEADING)
    actions = ",\n".join(f"`{action.value}` ({action.label})" for action in AuditAction)
    return f"{by_hand}{HEADING}{INTRO}{actions}.\n"


if __name__ == "__main__":
    PAGE.write_text(page())
