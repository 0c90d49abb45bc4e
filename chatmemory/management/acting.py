"""The person who runs a command, for its entries in the audit."""

from __future__ import annotations

from django.core.management import CommandError, CommandParser

from chatmemory.codec import check_value
from chatmemory.errors import BadInput
from chatmemory.services import Actor


def add_actor_arguments(parser: CommandParser) -> None:
    """Add `--by` and `--reason`."""
    parser.add_argument("--by", required=True, help="your username or name, for the audit")
    parser.add_argument("--reason", required=True, help="why, for the audit")


def actor(command: str, by: str, reason: str) -> Actor:
    """The person who runs this command. Raises CommandError for an empty name or reason."""
    for option, text in (("--by", by), ("--reason", reason)):
        if not text.strip():
            raise CommandError(f"{option} is empty.")
        try:
            check_value(text, option)
        except BadInput as error:
            raise CommandError(str(error)) from error
    return Actor.command(command, by.strip())
