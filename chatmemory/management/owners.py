"""Whose sessions the arguments of a command name: a username or a scope."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.core.management import CommandError

from chatmemory import services
from chatmemory.codec import check_value
from chatmemory.errors import BadInput
from chatmemory.services.actors import check_person


def scope_of(owner: str | None, scope: str | None) -> str | None:
    """The scope of the user of this name, or the one given; None if neither is.

    Raises CommandError.
    """
    if owner is None:
        if scope == "":
            raise CommandError("--scope is empty.")
        if scope is not None:
            _check(scope)
        return scope
    users = get_user_model()
    try:
        check_value(owner, "The username")
        return services.user_scope(users.objects.get_by_natural_key(owner))
    except BadInput as error:
        raise CommandError(str(error)) from error
    except users.DoesNotExist as error:
        raise CommandError(f"There is no user {owner[:80]!a}.") from error


def _check(scope: str) -> None:
    try:
        check_person(scope)
    except BadInput as error:
        raise CommandError(str(error)) from error
