"""Managers that read from the database to which a router sends writes.

A router may send reads to a replica, which lags behind: a turn would not find its own message
there, and the model would answer an older one.
"""

from __future__ import annotations

from typing import TypeVar

from django.db import models, router
from django.db.models import QuerySet

M = TypeVar("M", bound=models.Model)


class PrimaryManager(models.Manager[M]):
    """Reads from the write database, unless `using()` names another."""

    def get_queryset(self) -> QuerySet[M]:
        alias = self._db or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]  # not in the stubs
        return super().get_queryset().using(alias)


def on_primary(model: type[M]) -> QuerySet[M]:
    """Query a model of the host in its write database."""
    return model._default_manager.using(router.db_for_write(model))


def all_on_primary(model: type[M]) -> QuerySet[M]:
    """Query all rows of a model of the host, also those that its own manager hides."""
    return model._base_manager.using(router.db_for_write(model))
