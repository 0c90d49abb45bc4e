"""Sessions, users and messages for tests."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

from django.contrib.auth.models import User

from chatmemory.models import AuditEntry, DatabaseNow, Session, Visitor
from chatmemory.services import SERVER, Actor, user_scope
from chatmemory.services.audit.macs import mac_of

BY = Actor.server("tests")
TALK: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": SERVER}
"""The arguments with which services reach the session `talk` of the server's scope."""

_number = count(1)


def make_user(name: str = "", **columns: Any) -> User:
    """Store a user who can sign in with the password `secret`."""
    name = name or f"user{next(_number)}"
    return User.objects.create_user(name, password="secret", **columns)


def make_session(key: str = "talk", *, owner: User | None = None, **columns: Any) -> Session:
    """Store a session of this user, or of the server's scope; `columns` set any of its columns."""
    scope = user_scope(owner) if owner else SERVER
    session = Session.objects.create(**{"scope": scope, "key": key, "owner": owner, **columns})
    session.refresh_from_db()
    return session


@dataclass(frozen=True, slots=True)
class Guest:
    """A visitor with the credential."""

    token: str
    actor: Actor


def make_visitor(days: float = 30, **columns: Any) -> Guest:
    """Store a visitor who ends after this number of days; `columns` set any of its columns."""
    token = secrets.token_urlsafe(32)
    actor = Actor.visitor(token)
    ends_at = DatabaseNow() + timedelta(days=days)
    Visitor.objects.create(**{"digest": actor.id, "ends_at": ends_at, **columns})
    return Guest(token, actor)


def age_audit(ago: timedelta) -> None:
    """Move all entries back in time, with a valid MAC."""
    for entry in AuditEntry.objects.all():
        entry.created_at -= ago
        entry.mac = mac_of(entry)
        entry.save()


def make_messages(*texts: str) -> list[dict[str, object]]:
    """Return plain messages with these texts, by turns of the user and the assistant."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
