"""Walks over many sessions, for jobs that work on one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from chatmemory.models import Session, SessionQuerySet
from chatmemory.services.faults import durably

PAGE = 500
"""Sessions looked at in one statement."""


def walk(sessions: SessionQuerySet) -> Iterator[int]:
    """The primary keys of sessions, ascending; of none that is made meanwhile.

    Nothing is held between two pages, so the caller may change what it is given.
    """
    return chain.from_iterable(pages(sessions, PAGE))


def pages(sessions: SessionQuerySet, size: int) -> Iterator[list[int]]:
    """The same, `size` of them at a time."""
    newest = durably(Session.objects.order_by("-pk").first, is_repeatable=True)
    known = sessions.filter(pk__lte=newest.pk if newest else 0)
    pks = _page(known, 0, size)
    while pks:
        yield pks
        pks = _page(known, pks[-1], size)


def _page(sessions: SessionQuerySet, after: int, size: int) -> list[int]:
    pks = sessions.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:size]
    return durably(lambda: list(pks), is_repeatable=True)
