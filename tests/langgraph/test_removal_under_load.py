"""Removals while many graphs run: no removed word is in any table, and other threads lose nothing.

`REMOVAL_ROUNDS=250 pytest -m long tests/langgraph/test_removal_under_load.py` runs more rounds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import Any

import pytest
from django.db import connection, connections
from django.test import override_settings

from chatmemory import services
from chatmemory.errors import ChatMemoryError
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.models import Session
from chatmemory.services import Actor, user_scope
from chatmemory.services.removal.vacuum import vacuum
from tests.factories import BY, make_messages, make_user
from tests.langgraph.graphs import at, before, graph_of, input_of, messages_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database, pytest.mark.long]

ROUNDS = int(os.environ.get("REMOVAL_ROUNDS", "4"))
RUNS = 3
"""Runs of the person and of the session that are active during a removal, each in a thread."""
OTHERS = 2
"""Other people, whose threads grow all the time."""
WAIT_S = 60

Remover = Callable[[str], None]


def redact(scope: str) -> None:
    services.redact_message(session_key="talk", by=BY, scope=scope, seq=1, reason="")


def purge(scope: str) -> None:
    services.purge_session(session_key="talk", by=BY, scope=scope, reason="")
    with override_settings(CHATMEMORY={"UNDO_DAYS": 0}):
        vacuum()


def erase(scope: str) -> None:
    services.erase_person(scope=scope, by=BY, reason="")


def dump() -> bytes:
    """Return the contents of all tables."""
    found: list[bytes] = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            name = connection.ops.quote_name(table)
            cursor.execute(f"SELECT * FROM {name}")  # noqa: S608  # a name of the database
            for row in cursor.fetchall():
                found += [
                    bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
                    for value in row
                ]
    return b"\0".join(found)


def in_thread(call: Callable[[], Any]) -> Any:
    try:
        return call()
    finally:
        connections.close_all()


@contextmanager
def other_people(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Run graphs of other people within the block; none of their turns is lost."""
    is_over = threading.Event()

    def talk() -> tuple[list[str], list[str]]:
        user = make_user()
        graph, sent = graph_of(DjangoSaver(scope=user_scope(user))), list[str]()
        while not is_over.is_set():
            sent.append(f"turn {len(sent)}")
            graph.invoke(input_of(sent[-1]), at())
        return sent, messages_of(graph)[::2]

    running = [pool.submit(in_thread, talk) for _ in range(OTHERS)]
    try:
        yield
    finally:
        is_over.set()
    for result in running:
        sent, found = result.result(WAIT_S)
        assert found == sent


class Gate:
    """Counts the nodes that runs have reached; their last nodes may wait for the removal."""

    def __init__(self) -> None:
        self.reached = 0
        self.is_removed = threading.Event()
        self._changed = threading.Condition()

    def reach(self) -> None:
        with self._changed:
            self.reached += 1
            self._changed.notify_all()

    def reach_and_wait(self) -> None:
        self.reach()
        assert self.is_removed.wait(WAIT_S)

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.reached >= count, WAIT_S)


def remove_during_runs(pool: ThreadPoolExecutor, remove: Remover, word: str, moment: str) -> None:
    """Remove what a person wrote while runs of their threads are active, at a moment of the runs.

    `begun`: each has read its thread, and continues; `held`: none can end before the removal;
    `ended`: all have ended.
    """
    user = make_user()
    scope, by = user_scope(user), Actor.user(user)
    messages = make_messages(f"my {word}", "ok")
    services.append_messages(session_key="talk", by=by, messages=messages, create=True)
    savers = [DjangoSaver(session=Session.objects.get(scope=scope))]
    if remove is erase:
        savers.append(DjangoSaver(scope=scope))
    for saver in savers:
        graph_of(saver).invoke(input_of(word), at())
    gate, count = Gate(), RUNS * len(savers)
    last = gate.reach_and_wait if moment == "held" else gate.reach

    def run(number: int) -> None:
        # The first run of a saver continues its thread; the others begin threads.
        of_saver, index = divmod(number, len(savers))
        name = f"thread{of_saver}" if of_saver else "talk"
        graph_of(savers[index], before(gate.reach), before(last)).invoke(input_of(word), at(name))

    running = [pool.submit(in_thread, partial(run, number)) for number in range(count)]
    gate.wait_for(2 * count if moment == "held" else count)
    if moment == "ended":
        wait(running, WAIT_S)
    remove(scope)
    gate.is_removed.set()
    errors = [result.exception(WAIT_S) for result in running]
    assert all(error is None or isinstance(error, ChatMemoryError) for error in errors)
    if moment != "begun":
        assert {error is None for error in errors} == {moment == "ended"}


@pytest.mark.parametrize("remove", [redact, purge, erase])
def test_no_removed_word_is_in_a_dump(remove):
    words = [f"canary{number}" for number in range(ROUNDS)]
    moments = cycle(("begun", "held", "begun", "ended"))
    with ThreadPoolExecutor(2 * RUNS + OTHERS) as pool, other_people(pool):
        for word, moment in zip(words, moments, strict=False):
            remove_during_runs(pool, remove, word, moment)
    stored = dump()
    assert b"reply to turn" in stored
    assert [word for word in words if word.encode() in stored] == []
