"""The person who runs a command, as the actor of its audit entries."""

from __future__ import annotations

from django.core.management import CommandParser

from chatmemory.codec import check_value
from chatmemory.errors import BadInput
from chatmemory.management.exits import UsageError
from chatmemory.services import Actor


def add_actor_arguments(parser: CommandParser, *, required: bool = True) -> None:
    """Add `--by` and `--reason`."""
    parser.add_argument(
        "--by", required=required, help="your name or username, for the audit entry"
    )
    parser.add_argument("--reason", required=required, help="the reason, for the audit entry")


def command_actor(command: str, *, by: str, reason: str) -> Actor:
    """Validate `--by` and `--reason`, and return the actor. Raises UsageError."""
    for option, text in (("--by", by), ("--reason", reason)):
        if not text.strip():
            raise UsageError(f"{option} must not be empty.")
        try:
            check_value(text, option)
        except BadInput as error:
            raise UsageError(str(error)) from error
    return Actor.command(command, by.strip())
