"""For whom a call is made, and so which sessions it can reach."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from django.contrib.auth.base_user import AbstractBaseUser

from chatmemory.codec import check_value

SERVER = "server"
"""The scope of sessions that belong to no person."""


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
    def operator(cls, user: AbstractBaseUser) -> Actor:
        """A person who looks after other people's sessions."""
        return cls("operator", str(user.pk), user.get_username())


def scope_for(by: Actor, scope: str | None) -> str:
    """The key space in which `by` finds sessions.

    Raises TypeError where an operator or server code names none, or a person names another's:
    both are mistakes of the calling code, never of the person. Raises BadInput for a scope that no
    database can hold.
    """
    if by.kind in ("user", "visitor"):
        own = f"{by.kind}:{by.id}"
        if scope not in (None, own):
            raise TypeError(f"{by.kind}s reach only their own sessions; don't name a scope")
        return own
    if not scope:
        raise TypeError(f'{by.kind}s must name the scope, such as "user:1" or "{SERVER}"')
    check_value(scope, "scope")
    return scope


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
    """The scope of the person whose half-imported or usual sessions this one contains."""
    return scope.removeprefix(importing(""))


def owner_of(scope: str) -> str | None:
    """The primary key of the user whose scope this is."""
    kind, _, pk = scope.partition(":")
    return pk if kind == "user" else None
