"""Functions for the setting NEW_SESSION: with a query, refusing, failing, with wrong results."""

from __future__ import annotations

from collections.abc import Mapping

from django.contrib.auth.models import User
from django.db import connection

from chatmemory.errors import Forbidden
from chatmemory.services import Actor

CALLS: list[tuple[Actor, Mapping[str, str]]] = []
"""The arguments of each call in this process, newest last."""
RESULTS: list[object] = []
"""What `given` returns, if it is not empty."""


def of_team(by: Actor, asked: Mapping[str, str]) -> dict[str, object]:
    """Query the person's team."""
    assert not connection.in_atomic_block
    CALLS.append((by, asked))
    team = User.objects.get(pk=by.id).email.partition("@")[2]
    return {"instructions": f"You serve {team}.", "metadata": {"team": team}, "ttl_seconds": 60}


def given(by: Actor, asked: Mapping[str, str]) -> object:
    """Return what the test has set."""
    CALLS.append((by, asked))
    return RESULTS[-1] if RESULTS else None


def refusing(by: Actor, asked: Mapping[str, str]) -> None:
    """Refuse with the host's own sentence."""
    raise Forbidden("Your plan has no chat.")


def failing(by: Actor, asked: Mapping[str, str]) -> None:
    """Raise an error of the host."""
    raise LookupError("no plan")
