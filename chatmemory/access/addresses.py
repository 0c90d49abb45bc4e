"""Addresses of sessions: a scope and a session key."""

from __future__ import annotations

from dataclasses import dataclass

from chatmemory.access.actors import Actor, scope_for
from chatmemory.codec import check_value
from chatmemory.database.locks import lock_one
from chatmemory.database.pool import Lane
from chatmemory.errors import BadInput
from chatmemory.models import Session, SessionQuerySet

MAX_KEY_CHARS = 200
MAX_SEQ = 2**62
"""The highest seq; each database can store it."""


def check_session_key(key: str) -> None:
    """Check that every database can store a key. Raises BadInput; TypeError if it is not a str."""
    check_length("key", key, 1, MAX_KEY_CHARS)
    check_value(key, "key")


def check_length(field: str, value: object, min_chars: int, max_chars: int) -> None:
    """Check the length of a text. Raises BadInput; TypeError if it is not a str."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a str, not {type(value).__name__}")
    if not min_chars <= len(value) <= max_chars:
        message = f"{field} must have {min_chars} to {max_chars} characters."
        raise BadInput(message, field=field, limit=max_chars)


@dataclass(frozen=True, slots=True)
class Address:
    """A session as a call of a service names it.

    Look-up, permission and lock are one call, so that no service forgets one of them.
    """

    session_key: str
    by: Actor
    scope: str | None
    """None is the scope of `by`."""
    session_pk: int | None = None
    """If it is given, no other session under the same key is found."""

    def sessions(self) -> SessionQuerySet:
        """Return the active session, or none. Raises BadInput."""
        check_session_key(self.session_key)
        found = Session.objects.at(scope_for(self.by, self.scope), self.session_key)
        return found if self.session_pk is None else found.filter(pk=self.session_pk)

    def lock(self) -> Session:
        """Lock the active session. Needs a transaction. Raises BadInput, NotFound."""
        return lock_one(self.sessions())


def lock_stored_session(session_pk: int, by: Actor, scope: str | None) -> Session:
    """Lock a session that is or was in this scope, even an expired or purged one.

    Needs a transaction. Raises NotFound.
    """
    return lock_one(Session.objects.of_scopes(scope_for(by, scope)).filter(pk=session_pk))


def address_lane(*, session_key: str, by: Actor, scope: str | None = None, **_: object) -> Lane:
    """Return the lane of a call that names a session by its address. See Note [Lanes]."""
    # The scope is not checked: a lane only orders calls, and the service rejects a wrong scope.
    return (scope or by.owner, session_key)
