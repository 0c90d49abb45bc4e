"""The command that imports the histories of LangChain."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from django.core.management import CommandError, CommandParser
from django.utils.module_loading import import_string

from chatmemory.errors import BadInput, MemoryUnavailable
from chatmemory.formats import Target
from chatmemory.imports.histories import Source, import_histories
from chatmemory.imports.tables import TABLE, Table
from chatmemory.management.acting import add_actor_arguments, command_actor
from chatmemory.management.commands import chatmemory_import
from chatmemory.management.exits import UsageError
from chatmemory.management.owners import scope_of
from chatmemory.management.reporting import ReportingCommand

KEY_PREFIX = "message_store:"
"""The default of `RedisChatMessageHistory`."""


class Command(chatmemory_import.Command):
    """Stores each history completely or not at all; appends what is new in a later run."""

    help = (
        "Import the chat histories of LangChain: the table of SQLChatMessageHistory or of "
        "langchain-postgres, or the lists of RedisChatMessageHistory. Each history becomes a "
        "conversation whose key is its session_id. After a failure, run it again: what is already "
        "stored is not stored again. docs/howto/from-langchain.md describes a move."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        ReportingCommand.add_arguments(self, parser)  # without those of a file
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument(
            "--database", metavar="ALIAS", help="the database with the table, as in DATABASES"
        )
        source.add_argument(
            "--redis", metavar="URL", help="the server, such as redis://localhost:6379/0"
        )
        parser.add_argument("--table", help=f"the table; default: {TABLE}")
        parser.add_argument("--key-prefix", help=f"of the lists; default: {KEY_PREFIX}")
        destination = parser.add_mutually_exclusive_group(required=True)
        destination.add_argument("--owner", help="username of the owner of all histories")
        destination.add_argument("--scope", help="scope of all histories, such as server or user:7")
        destination.add_argument(
            "--owner-of",
            metavar="PATH",
            help="dotted path of a function of yours: it is given a session_id, and returns its "
            "user, or a scope such as server, or None, which refuses the history",
        )
        parser.add_argument(
            "--prefix", help="store under PREFIX:session_id; by default without a prefix"
        )
        add_actor_arguments(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="validate everything, store nothing"
        )

    def handle(  # type: ignore[override]  # other options
        self,
        *,
        owner: str | None = None,
        scope: str | None = None,
        owner_of: str | None = None,
        prefix: str | None = None,
        by: str,
        reason: str,
        dry_run: bool,
        **options: Any,
    ) -> None:
        target = Target(
            by=command_actor("chatmemory_import_langchain", by=by, reason=reason),
            scope=scope_of(owner, scope),
            prefix=prefix,
            reason=reason,
            dry_run=dry_run,
        )
        function = _function(owner_of) if owner_of is not None else None
        try:
            source = _source(**options)
        except BadInput as error:
            raise UsageError(str(error)) from error
        except MemoryUnavailable as error:
            raise CommandError(f"{error} Run this again to continue.") from error
        self.store(import_histories(source, target, function), target, "history")


def _source(
    *,
    database: str | None = None,
    redis: str | None = None,
    table: str | None = None,
    key_prefix: str | None = None,
    **_: object,
) -> Source:
    """Return what the options name. Raises BadInput, MemoryUnavailable, CommandError."""
    if database is not None:
        if key_prefix is not None:
            raise UsageError("--key-prefix needs --redis.")
        return Table(database, table or TABLE)
    if table is not None:
        raise UsageError("--table needs --database.")
    try:
        lists: Any = import_module("chatmemory.imports.redis_lists")
    except ImportError as error:
        advice = 'pip install "django-chatmemory[redis]"'
        raise CommandError(f"Redis needs its package: {advice}") from error
    source: Source = lists.Lists(redis, KEY_PREFIX if key_prefix is None else key_prefix)
    return source


def _function(path: str) -> Callable[[str], Any]:
    """Import the function of `--owner-of`. Raises UsageError."""
    try:
        found: Callable[[str], Any] = import_string(path)
    except ImportError as error:
        raise UsageError(f"--owner-of can't be imported: {error}") from error
    if not callable(found):
        raise UsageError(f"--owner-of is no function: {path}")
    return found
