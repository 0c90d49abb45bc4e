"""What is said after a commit, by signals. Who hears it the services don't know."""

from __future__ import annotations

from django.db import transaction
from django.dispatch import Signal

from chatmemory import signals
from chatmemory.services.faults import database


def tell(session_pk: int) -> None:
    """Say that the session has news."""
    _after_commit(signals.session_changed, session_pk=session_pk)


def tell_waiting(session_pk: int, client_id: str) -> None:
    """Say that a turn waits for somebody to run it."""
    _after_commit(signals.turn_waiting, session_pk=session_pk, client_id=client_id)


def tell_stop(session_pk: int, turn_pk: int) -> None:
    """Say that a running turn shall stop."""
    _after_commit(signals.stop_requested, session_pk=session_pk, turn_pk=turn_pk)


def tell_finished(session_pk: int, client_id: str, status: str, error: str) -> None:
    """Say that a turn ended."""
    _after_commit(
        signals.turn_finished,
        session_pk=session_pk,
        client_id=client_id,
        status=status,
        error=error,
    )


def _after_commit(signal: Signal, **about: object) -> None:
    transaction.on_commit(
        lambda: signal.send_robust(None, **about), using=database().alias, robust=True
    )
