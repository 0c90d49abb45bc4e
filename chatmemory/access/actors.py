"""Actors and scopes: which sessions a call can reach."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.core.exceptions import ValidationError

from chatmemory.codec import check_value
from chatmemory.errors import BadInput, Impersonated

SERVER = "server"
"""The scope of sessions without an owner."""

_KINDS = ("user", "visitor", "importing", "removed")
"""The prefixes of other scopes; the last two are internal."""

_FORMS = f"user:<primary key>, visitor:<hash> or {SERVER}"
"""The forms of scopes that callers may use, for error texts."""

_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Actor:
    """The user or program for which a call is made.

    Users and visitors reach only their own scope; operators, commands and server code must name a
    scope.
    """

    kind: str
    id: str
    label: str
    real: Actor | None = None
    """The operator who acts in the name of this person; None if the person does."""

    @property
    def responsible(self) -> Actor:
        """Who really acts, for the audit."""
        return self.real or self

    @classmethod
    def user(cls, user: AbstractBaseUser) -> Actor:
        """A person with an account."""
        return cls("user", str(user.pk), user.get_username())

    @classmethod
    def visitor(cls, token: str) -> Actor:
        """A person without an account, identified by a token in the browser."""
        # Only a hash is kept, since a reader of the database could use the token.
        return cls.known_visitor(hashlib.sha256(token.encode()).hexdigest())

    @classmethod
    def known_visitor(cls, digest: str) -> Actor:
        """A visitor, by the hash of the token."""
        return cls("visitor", digest, f"visitor {digest[:8]}")

    @property
    def owner(self) -> str:
        """The scope of a user's or visitor's own sessions."""
        return f"{self.kind}:{self.id}"

    @classmethod
    def server(cls, name: str) -> Actor:
        """The host's own code, such as a task or a chain."""
        return cls("server", name, name)

    @classmethod
    def command(cls, command: str, person: str) -> Actor:
        """A person who runs a management command, under the name that they state."""
        return cls("command", person, f"{person}, {command}")

    @classmethod
    def operator(cls, user: AbstractBaseUser) -> Actor:
        """A person who manages other people's sessions."""
        return cls("operator", str(user.pk), user.get_username())


def check_own_name(by: Actor) -> None:
    """Check that no one else acts in the name of a person. Raises Impersonated."""
    if by.real is not None:
        raise Impersonated


def scope_for(by: Actor, scope: str | None) -> str:
    """Return the scope in which an actor reaches sessions.

    Raises TypeError if an operator or server code names no scope, or if a person names another
    person's. Raises BadInput if the form of the scope is unknown.
    """
    # TypeError, since these are bugs of the host: no input from a client chooses the scope.
    if by.kind in ("user", "visitor"):
        if scope not in (None, by.owner):
            raise TypeError(f"{by.kind}s reach only their own sessions; omit the scope")
        return by.owner
    if not scope:
        raise TypeError(f'{by.kind}s must name the scope, such as "user:1" or "{SERVER}"')
    check_scope(scope)
    return scope


def check_scope(scope: str) -> None:
    """Check that a scope has one of the known forms. Raises BadInput."""
    check_value(scope, "scope")
    kind, separator, name = scope.partition(":")
    if scope != SERVER and not (separator and name and kind in _KINDS):
        raise BadInput(f"{scope[:80]!a} is not a scope. Use {_FORMS}.", field="scope")


def person_for(by: Actor, scope: str | None) -> str:
    """Return the scope of the person whose data `by` uses. Raises TypeError, BadInput."""
    person = scope_for(by, scope)
    check_person(person)
    return person


def check_person(scope: str) -> None:
    """Check that a scope is the server's or can belong to a person. Raises BadInput."""
    check_scope(scope)
    kind, _, name = scope.partition(":")
    if kind in ("importing", "removed"):
        raise BadInput(f"{scope[:80]!a} is an internal scope. Use {_FORMS}.", field="scope")
    if kind == "user" and not _is_user_pk(name):
        raise BadInput(f"{name[:80]!a} is not a primary key of a user.", field="scope")
    if kind == "visitor" and not _DIGEST.fullmatch(name):
        raise BadInput("A visitor's scope must be visitor: and 64 hex digits.", field="scope")


def _is_user_pk(text: str) -> bool:
    """Whether a user can have this primary key in exactly this form."""
    pk = get_user_model()._meta.pk
    try:
        # Compared as text: "user:01" would be another scope for the sessions of user 1.
        return str(pk.to_python(text)) == text
    except ValidationError:
        return False


def user_scope(user: AbstractBaseUser) -> str:
    """Return the scope of a user's sessions, for operators and server code."""
    return f"user:{user.pk}"


def is_person(scope: str) -> bool:
    """Whether a user or a visitor owns the sessions of this scope."""
    return scope.startswith(("user:", "visitor:"))


def importing_scope(scope: str) -> str:
    """Return the scope of a session during its import into `scope`."""
    return f"importing:{scope}"


def purged_scope(session_pk: int | str) -> str:
    """Return the scope of a purged session, so that its key becomes free in its old scope."""
    return f"removed:{session_pk}"


INTERNAL_PREFIXES = (importing_scope(""), purged_scope(""))
"""The prefixes of scopes in which no session can be opened."""


def all_scopes_of(scope: str) -> tuple[str, str]:
    """Return all scopes of a person's sessions; purged sessions keep theirs as `removed_scope`."""
    return (scope, importing_scope(scope))


def person_of(scope: str) -> str:
    """Return the scope of the person to whom a scope belongs, also during an import."""
    return scope.removeprefix(importing_scope(""))


def owner_of(scope: str) -> str | None:
    """Return the primary key of the user to whom a scope belongs, or None."""
    kind, _, pk = scope.partition(":")
    return pk if kind == "user" else None


def visitor_of(scope: str) -> str | None:
    """Return the digest of the visitor to whom a scope belongs, or None."""
    kind, _, digest = scope.partition(":")
    return digest if kind == "visitor" else None
