"""For whom a call is made, and so which sessions it can reach."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.core.exceptions import ValidationError

from chatmemory.codec import check_value
from chatmemory.errors import BadInput

SERVER = "server"
"""The scope of sessions that belong to no person."""

KINDS = ("user", "visitor", "importing", "removed")
"""How other scopes begin; the last two are internal."""

FORMS = f"user:<primary key>, visitor:<hash> or {SERVER}"

_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts. Users and visitors find their own scope; operators and server code name one."""

    kind: str
    id: str
    label: str

    @classmethod
    def user(cls, user: AbstractBaseUser) -> Actor:
        """A person with an account."""
        return cls("user", str(user.pk), user.get_username())

    @classmethod
    def visitor(cls, token: str) -> Actor:
        """A person without one, known by a secret in the browser's session; only its hash stays."""
        digest = hashlib.sha256(token.encode()).hexdigest()
        return cls("visitor", digest, f"visitor {digest[:8]}")

    @classmethod
    def server(cls, name: str) -> Actor:
        """The developer's own code: a task, a command, a chain."""
        return cls("server", name, name)

    @classmethod
    def command(cls, command: str, person: str) -> Actor:
        """A person who runs a management command, by the name that they state."""
        return cls("command", person, f"{person}, {command}")

    @classmethod
    def operator(cls, user: AbstractBaseUser) -> Actor:
        """A person who looks after other people's sessions."""
        return cls("operator", str(user.pk), user.get_username())


def scope_for(by: Actor, scope: str | None) -> str:
    """The key space in which `by` finds sessions.

    Raises TypeError where an operator or server code names none, or a person names another's:
    both are mistakes of the calling code, never of the person. Raises BadInput for a scope of an
    unknown form.
    """
    if by.kind in ("user", "visitor"):
        own = f"{by.kind}:{by.id}"
        if scope not in (None, own):
            raise TypeError(f"{by.kind}s reach only their own sessions; don't name a scope")
        return own
    if not scope:
        raise TypeError(f'{by.kind}s must name the scope, such as "user:1" or "{SERVER}"')
    check_scope(scope)
    return scope


def check_scope(scope: str) -> None:
    """Check that a scope has one of the known forms. Raises BadInput."""
    check_value(scope, "scope")
    kind, separator, name = scope.partition(":")
    if scope != SERVER and not (separator and name and kind in KINDS):
        raise BadInput(f"{scope[:80]!a} is not a scope. Use {FORMS}.", field="scope")


def person_for(by: Actor, scope: str | None) -> str:
    """The scope of the person on whose data `by` acts. Raises as `scope_for`, and BadInput."""
    person = scope_for(by, scope)
    check_person(person)
    return person


def check_person(scope: str) -> None:
    """Check that a scope can be that of a person, or is the server's. Raises BadInput."""
    check_scope(scope)
    kind, _, name = scope.partition(":")
    if kind in ("importing", "removed"):
        raise BadInput(f"{scope[:80]!a} is an internal scope. Use {FORMS}.", field="scope")
    if kind == "user" and not _is_user_pk(name):
        raise BadInput(f"{name[:80]!a} is not a primary key of a user.", field="scope")
    if kind == "visitor" and not _DIGEST.fullmatch(name):
        raise BadInput("A visitor's scope is visitor: and 64 hex digits.", field="scope")


def _is_user_pk(text: str) -> bool:
    """Whether a user could have this primary key, written as the scope writes it."""
    pk = get_user_model()._meta.pk
    try:
        return str(pk.to_python(text)) == text
    except ValidationError:
        return False


def user_scope(user: AbstractBaseUser) -> str:
    """The scope of a user's sessions, for operators and server code."""
    return f"user:{user.pk}"


def is_person(scope: str) -> bool:
    """Whether the sessions of this scope are those of a user or a visitor."""
    return scope.startswith(("user:", "visitor:"))


def importing(scope: str) -> str:
    """Where a session of this scope lies while it is being imported."""
    return f"importing:{scope}"


def removed(session_pk: int | str) -> str:
    """Where a session lies once it is purged, so that its key is free."""
    return f"removed:{session_pk}"


NOBODYS = (importing(""), removed(""))
"""How scopes begin in which nobody opens a session."""


def spaces_of(scope: str) -> tuple[str, str]:
    """Every scope under which sessions of this one's person lie; for those purged, lay."""
    return (scope, importing(scope))


def person_of(scope: str) -> str:
    """The scope of the person whose sessions, half-imported or not, are in this scope."""
    return scope.removeprefix(importing(""))


def owner_of(scope: str) -> str | None:
    """The primary key of the user whose scope this is."""
    kind, _, pk = scope.partition(":")
    return pk if kind == "user" else None
