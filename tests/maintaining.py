"""Run `chatmemory_maintain`, and wait in one of its commands, so that a test can kill it there.

`python -m tests.maintaining COMMAND COUNT` prints a line and blocks before the statement of this
number in the command.
"""

from __future__ import annotations

import itertools
import sys
from importlib import import_module
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection


def main(command: str, count: int) -> None:
    django.setup()
    maintain: Any = import_module("chatmemory.management.commands.chatmemory_maintain")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}

    def call(name: str, **options: Any) -> None:
        if name != command:
            call_command(name, **options)
            return
        numbers = itertools.count(1)

        def wait(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if next(numbers) == count:
                sys.stdout.write(f"in {name}\n")
                sys.stdout.flush()
                sys.stdin.read()
            return execute(sql, params, many, context)

        with connection.execute_wrapper(wait):
            call_command(name, **options)

    maintain.call_command = call
    call_command("chatmemory_maintain")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
