"""The exit statuses of commands. docs/reference/commands.md lists them."""

from __future__ import annotations

from typing import Any

from django.core.management import CommandError

REFUSED = 1
"""Refused, or partly not done; standard error states what, and whether to run it again."""
USAGE = 2
"""Wrong options."""
UNKNOWN = 3
"""Unknown, because a key is not in the settings: `chatmemory_erased`, `chatmemory_person`."""


class UsageError(CommandError):
    """The options do not fit together, or have a wrong value: a repeated run fails too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, returncode=USAGE)
