"""Store the example data once."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from io import StringIO
from random import Random

from django.apps import apps
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import transaction

from chatmemory.database.faults import write_connection
from chatmemory.models import AuditAction, AuditEntry, Session, database_now
from chatmemory.services import Actor
from chatmemory.services.audit.entries import record_person
from project.demo_data.conversations import make_people, write_conversations
from project.demo_data.operators import Desk
from project.demo_data.rows import Conversation, store

BY = Actor.server("demo")
REASON = "The made-up conversations of the demo"
SEED = 2026


def is_made() -> bool:
    """Return whether the data were stored before, also if people have changed or deleted them."""
    imports = AuditEntry.objects.filter(action=AuditAction.IMPORT, reason=REASON)
    return imports.filter(actor_kind=BY.kind, actor_id=BY.id).exists()


def make_example_data(operator: User) -> None:
    """Store the example data, unless they were stored before, and do the maintenance.

    All or nothing: an interrupted call stores nothing. `operator` needs all permissions of the app.
    """
    with transaction.atomic():
        if is_made():
            return
        conversations = _store_all(operator)
    _maintain()
    _expire_one(conversations)
    if apps.is_installed("chatmemory.langgraph"):
        from project.demo_data.threads import store_threads  # it imports LangGraph

        newest = Session.objects.active().filter(last_seq__gt=0, owner__isnull=False)
        store_threads(newest.order_by("-last_message_at")[:3])


def _maintain() -> None:
    # Health shows what fails, for example in a database from before; the demo starts anyway.
    with suppress(CommandError):
        # The entries of the past were never sealed, which otherwise is a finding.
        call_command("chatmemory_audit_verify", seal_old=True, stdout=StringIO())
        call_command("chatmemory_maintain", stdout=StringIO())


def _store_all(operator: User) -> list[Conversation]:
    rng, now = Random(SEED), database_now(write_connection())  # noqa: S311  # no secret
    conversations = write_conversations(make_people(rng), now, rng)
    store(conversations)
    Desk(conversations, [operator, _make_colleague()], now, rng).work()
    counts = {
        "sessions": len(conversations),
        "messages": sum(len(one.messages) for one in conversations),
    }
    record_person("", AuditAction.IMPORT, BY, REASON, **counts)
    return conversations


def _make_colleague() -> User:
    """Return a second operator, who cannot sign in."""
    password = make_password(None)
    defaults = {"first_name": "Eli", "is_staff": True, "password": password}
    colleague, _ = User.objects.get_or_create(username="eli@example.org", defaults=defaults)
    return colleague


def _expire_one(conversations: list[Conversation]) -> None:
    """Let one conversation expire after the maintenance, which would have purged it."""
    ending = [one.session for one in conversations if one.session.expires_at]
    sessions = Session.objects.filter(pk__in=[one.pk for one in ending], removed_at__isnull=True)
    for pk in sessions.order_by("expires_at").values_list("pk", flat=True)[:1]:
        expires_at = database_now(write_connection()) - timedelta(minutes=1)
        sessions.filter(pk=pk).update(expires_at=expires_at)
