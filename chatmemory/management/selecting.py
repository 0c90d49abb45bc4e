"""The sessions that `--session`, or `--owner` or `--scope`, selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management import CommandError, CommandParser
from django.db.models import F

from chatmemory.codec import check_value
from chatmemory.database.retries import durably
from chatmemory.errors import BadInput, MemoryUnavailable
from chatmemory.management.exits import UsageError
from chatmemory.management.owners import scope_of
from chatmemory.models import Session, SessionQuerySet

MAX_PK = 2**63 - 1
"""The highest primary key; a database may reject a query for a higher one."""


def add_session_arguments(
    parser: CommandParser, *, many: bool = False, everyone: bool = False
) -> None:
    """Add the options that select one session; with `many`, also several, or all of a person.

    With `many` and `everyone`, `--all` alone selects all sessions of all people.
    """
    group = parser.add_mutually_exclusive_group(required=not everyone)
    group.add_argument(
        "--session",
        type=int,
        nargs="+" if many else 1,
        metavar="PK",
        help="primary keys of conversations" if many else "primary key of the conversation",
    )
    group.add_argument("--owner", help="username of the conversations' owner")
    group.add_argument("--scope", help="scope of the conversations, such as server or user:7")
    parser.add_argument(
        "--key", help="the conversation with this key; if all are purged, the last purged one"
    )
    if many:
        parser.add_argument(
            "--all",
            action="store_true",
            help="all conversations of --owner or --scope, also purged"
            + ("; alone: of all people" if everyone else ""),
        )


def select_sessions(options: Mapping[str, Any]) -> SessionQuerySet:
    """Return the selected sessions, at least one. Raises CommandError."""
    try:
        pks = _selected_sessions(options)
    except (BadInput, MemoryUnavailable) as error:
        raise CommandError(str(error)) from error
    return pks


def select_session(options: Mapping[str, Any]) -> Session:
    """Return the selected session. Raises CommandError."""
    return select_sessions(options).get()


def _selected_sessions(options: Mapping[str, Any]) -> SessionQuerySet:
    key, is_all = options["key"], options.get("all", False)
    if options["session"] is not None:
        if key is not None or is_all:
            raise UsageError("--key and --all need --owner or --scope.")
        return _with_pks(options["session"])
    scope = scope_of(options["owner"], options["scope"]) or ""
    if not scope:  # possible only with `everyone`
        if key is not None or not is_all:
            raise UsageError("Give --session, --owner or --scope, or only --all.")
        return Session.objects.all()
    if (key is None) is not is_all:
        raise UsageError("Give either --key or --all." if "all" in options else "Give --key.")
    found = Session.objects.of_scopes(scope)
    if is_all:
        if not durably(found.exists, is_repeatable=True):
            raise CommandError(f"Nothing is stored under {scope}.")
        return found
    check_value(key, "--key")
    newest = found.filter(key=key).order_by(F("removed_at").desc(nulls_first=True), "-pk")
    session = durably(newest.first, is_repeatable=True)
    if session is None:
        raise CommandError(f"No conversation of {scope} has this key.")
    return Session.objects.filter(pk=session.pk)


def _with_pks(pks: Sequence[int]) -> SessionQuerySet:
    found = Session.objects.filter(pk__in=[pk for pk in pks if 0 < pk <= MAX_PK])
    stored = durably(lambda: set(found.values_list("pk", flat=True)), is_repeatable=True)
    if missing := sorted(set(pks) - stored):
        listed = ", ".join(map(str, missing))
        raise CommandError(f"Not stored: conversation {listed}. Nothing was changed.")
    return found
