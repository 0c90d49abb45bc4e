"""Commands in tests: their output, and their exit status."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

from django.core.management import CommandError, call_command

WHO = {"by": "olga", "reason": "request of 4 May"}


def run(command: str, *args: Any, **options: Any) -> tuple[int, str]:
    """Return the exit status and the output of a command."""
    out = StringIO()
    try:
        call_command(command, *map(str, args), stdout=out, **options)
    except CommandError as error:
        # Wrong options have this status only on a command line, where argparse itself exits.
        return error.returncode, out.getvalue()
    return 0, out.getvalue()


def run_json(command: str, *args: Any, **options: Any) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status and the JSON lines of a command."""
    status, text = run(command, "--json", *args, **options)
    return status, [json.loads(line) for line in text.splitlines()]
