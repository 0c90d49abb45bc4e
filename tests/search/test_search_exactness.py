"""After each change, a search finds exactly the messages that are shown, with the same scores.

`SEARCH_HISTORIES=2000 pytest -m long tests/search/test_search_exactness.py` runs more histories.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from django.db import transaction

from tests.search.walking import World, small_blocks

pytestmark = [pytest.mark.django_db, pytest.mark.database]

HISTORIES = int(os.environ.get("SEARCH_HISTORIES", "4"))
STEPS = 25


@pytest.fixture(autouse=True)
def _visitors(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True}


def walk(seeds: Iterable[int], monkeypatch: pytest.MonkeyPatch, *, ways: int, steps: int) -> None:
    for seed in seeds:
        with monkeypatch.context() as patch, transaction.atomic():
            world = World(seed)
            small_blocks(patch, world.chosen.choice((2, 5, 128)))
            done: list[str] = []
            for _ in range(steps):
                done.append(world.step())
                try:
                    world.check_blocks()
                    world.check_search(ways=ways)
                except AssertionError as error:
                    raise AssertionError(f"history {seed}: {', '.join(done)}") from error
            transaction.set_rollback(True)


@pytest.mark.slow
def test_a_search_finds_exactly_what_is_shown_after_each_step(monkeypatch):
    walk(range(4), monkeypatch, ways=2, steps=STEPS)


@pytest.mark.long
def test_a_search_finds_exactly_what_is_shown_in_many_histories(monkeypatch):
    walk(range(100, 100 + HISTORIES), monkeypatch, ways=4, steps=STEPS)
