"""A copy of a thread while the person is erased, in real threads."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from chatmemory.errors import HistoryCleared
from chatmemory.langgraph import copying
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.services import SERVER, erase_person
from tests.factories import BY
from tests.langgraph.graphs import at, graph_of, input_of, stored_bytes
from tests.locking import thread

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

WAIT_S = 20


@pytest.mark.slow
def test_an_erasure_that_waits_for_a_copy_erases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = DjangoSaver(scope=SERVER)
    graph_of(saver).invoke(input_of("canary"), at())
    has_locked, copy_rows = threading.Event(), copying._copy_rows

    def wait_first(*args: Any) -> None:
        copy_rows(*args)
        has_locked.set()
        done.wait(0.3)

    done = threading.Event()
    monkeypatch.setattr(copying, "_copy_rows", wait_first)
    with thread() as call:
        copied = call(partial(saver.copy_thread, "talk", "copy"))
        assert has_locked.wait(WAIT_S)
        erase_person(scope=SERVER, by=BY, reason="")
        done.set()
        assert isinstance(copied.exception(WAIT_S), HistoryCleared | None)
    assert b"canary" not in stored_bytes()
