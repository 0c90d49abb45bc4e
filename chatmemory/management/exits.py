"""The exit statuses of commands. The table is in docs/howto/operators.md."""

from __future__ import annotations

from typing import Any

from django.core.management import CommandError

REFUSED = 1
"""Refused, or not completely done: the status of CommandError."""
USAGE = 2
"""Wrong options: also the status of argparse."""
UNKNOWN = 3
"""The answer depends on a key that is not in the settings."""


class UsageError(CommandError):
    """The options do not fit together, or have a wrong value: a repeated run fails too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, returncode=USAGE)
