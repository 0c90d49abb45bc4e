"""The scope that `--owner` or `--scope` selects."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.access.actors import check_person
from chatmemory.codec import check_value
from chatmemory.errors import BadInput
from chatmemory.management.exits import UsageError


def add_person_arguments(parser: CommandParser) -> None:
    """Add `--owner` and `--scope`, of which one is required."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--owner", help="username of the person")
    group.add_argument("--scope", help="scope of a deleted user or a visitor, such as user:7")


def scope_of(owner: str | None, scope: str | None) -> str | None:
    """Return the scope of the user named `owner`, else `scope`. Raises CommandError."""
    users = get_user_model()
    try:
        if owner is not None:
            check_value(owner, "The username")
            return services.user_scope(users.objects.get_by_natural_key(owner))
        if scope == "":
            raise UsageError("--scope must not be empty.")
        if scope is not None:
            check_person(scope)
    except BadInput as error:
        raise UsageError(str(error)) from error
    except users.DoesNotExist as error:
        raise CommandError(
            f"User {str(owner)[:80]!a} does not exist. For a deleted user, pass --scope user:ID."
        ) from error
    return scope
