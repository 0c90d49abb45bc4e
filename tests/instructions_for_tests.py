"""Functions for the setting INSTRUCTIONS_FOR: sync and async, failing, and with wrong results."""

from __future__ import annotations

from asgiref.sync import sync_to_async

from chatmemory.models import Message, Session


def owners_name(session: Session) -> str:
    """Query the database, and read the owner."""
    count = Message.objects.filter(session=session).count()
    return f"Greet {session.owner}, after {count} message."


async def of_metadata(session: Session) -> str:
    """Return the prompt of the session's customer group, read in a thread."""
    group = await sync_to_async(lambda: Session.objects.get(pk=session.pk).metadata["group"])()
    return f"You serve the group {group}."


def nothing(session: Session) -> None:
    """Return no prompt."""


def failing(session: Session) -> str:
    """Raise an error with a text that no log may contain."""
    raise LookupError("secret word")


def a_list(session: Session) -> list[str]:
    """Return a wrong type."""
    return ["Be short."]
