"""The lease of the process that does the maintenance: of several hosts, only one does it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import uuid4

from django.db import connections
from django.db.models import Q

from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import MemoryUnavailable
from chatmemory.models import DatabaseNow, Maintenance
from chatmemory.services.maintenance.tasks import LEASE_NAME

logger = logging.getLogger(__name__)

LEASE: Final = timedelta(seconds=60)
"""How long after the death of a process another one waits."""
RENEW_SECONDS: Final = 10.0

# Note [Lease of the maintenance]
#
# It is a row of `Maintenance` whose name is that of no task, so Health does not show it. Its
# `started_at` is the time of the last renewal, its `counts` name the owner.


@contextmanager
def only_here() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether this process does the maintenance, before each task.

    It keeps others from it until the end. A thread renews the lease. A process that was paused for
    longer than `LEASE` may lose it: it completes its task, which may then run twice simultaneously,
    and begins no other. Both the function and this raise MemoryUnavailable.
    """
    owner = uuid4().hex
    if not _claim(owner):
        yield lambda: False
        return
    is_over = threading.Event()
    renewing = threading.Thread(target=_renew_until, args=(is_over, owner), daemon=True)
    renewing.start()
    try:
        yield partial(_renew, owner)
    finally:
        is_over.set()
        renewing.join()
        with suppress(MemoryUnavailable):  # then it expires
            _release(owner)


@retried(is_repeatable=True)
def _claim(owner: str) -> bool:
    rows = Maintenance.objects.filter(name=LEASE_NAME)
    if not rows.exists():
        with ignored_duplicate(), locked_transaction():
            Maintenance.objects.create(name=LEASE_NAME, ended_at=DatabaseNow())
    is_free = Q(ended_at__isnull=False) | Q(started_at__lt=DatabaseNow() - LEASE)
    mine = Q(counts__owner=owner)  # a repetition after a lost commit
    columns = {"started_at": DatabaseNow(), "ended_at": None, "counts": {"owner": owner}}
    return bool(rows.filter(is_free | mine).update(**columns))


@retried(is_repeatable=True)
def _renew(owner: str) -> bool:
    rows = Maintenance.objects.filter(name=LEASE_NAME, counts__owner=owner)
    return bool(rows.update(started_at=DatabaseNow()))


@retried(is_repeatable=True)
def _release(owner: str) -> None:
    rows = Maintenance.objects.filter(name=LEASE_NAME, counts__owner=owner)
    rows.update(ended_at=DatabaseNow(), counts={})


def _renew_until(is_over: threading.Event, owner: str) -> None:
    try:
        while not is_over.wait(RENEW_SECONDS):
            try:
                if not _renew(owner):
                    logger.warning("another process has taken over the maintenance")
                    return
            except MemoryUnavailable:
                logger.warning("the lease of the maintenance cannot be renewed yet")
    finally:
        connections.close_all()  # those of this thread
