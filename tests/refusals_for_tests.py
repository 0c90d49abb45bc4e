"""Functions for the setting BEFORE_SEND: refusing, failing, and counting their calls."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection

from chatmemory.errors import Refused
from chatmemory.services import Actor, Sending

CALLS: list[tuple[Actor, Sending]] = []
"""The arguments of each call in this process, newest last."""

SENTENCE = "Your plan has no messages left."


def note(by: Actor, sending: Sending) -> None:
    """Allow the message."""
    assert not connection.in_atomic_block
    CALLS.append((by, sending))


def refuse(by: Actor, sending: Sending) -> None:
    """Refuse it with the host's own sentence."""
    note(by, sending)
    raise Refused(SENTENCE, reason="plan")


async def arefuse(by: Actor, sending: Sending) -> None:
    """Refuse it after a query."""
    assert await User.objects.filter(pk=by.id).aexists()
    await sync_to_async(refuse)(by, sending)


def fail(by: Actor, sending: Sending) -> None:
    """Raise an error of the host."""
    raise LookupError(f"no plan for {sending.text}")


def fail_at_limit(by: Actor) -> int:
    """Raise an error of the host, as a limit."""
    raise LookupError("no plan")
