"""Removals while many graphs run: no removed word is in any table, and other threads lose nothing.

`REMOVAL_ROUNDS=250 pytest -m long tests/langgraph/test_removal_under_load.py` runs more rounds.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
from tests.langgraph.graphs import at, before, graph_of, messages_of, said

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database, pytest.mark.long]

ROUNDS = int(os.environ.get("REMOVAL_ROUNDS", "4"))
RUNS = 3
"""Runs of the person and of the session that are active during a removal, each in a thread."""
OTHERS = 2
"""Other people, whose threads grow all the time."""
PAUSES_S = (0, 0.02, 0.1, 2)
"""From the start of the runs to the removal; in the last one they end."""
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
            graph.invoke(said(sent[-1]), at())
        return sent, messages_of(graph)[::2]

    running = [pool.submit(in_thread, talk) for _ in range(OTHERS)]
    try:
        yield
    finally:
        is_over.set()
    for result in running:
        sent, found = result.result(WAIT_S)
        assert found == sent


def remove_during_runs(
    pool: ThreadPoolExecutor, chosen: random.Random, remove: Remover, word: str, pause_s: float
) -> set[bool]:
    """Remove what a person said while runs of their threads are active.

    Returns whether runs have stored all, as they do if they end before the removal.
    """
    user = make_user()
    scope = user_scope(user)
    messages = make_messages(f"my {word}", "ok")
    services.append_messages(
        session_key="talk", by=Actor.user(user), messages=messages, create=True
    )
    savers = [DjangoSaver(session=Session.objects.get(scope=scope))]
    if remove is erase:
        savers.append(DjangoSaver(scope=scope))
    for saver in savers:
        graph_of(saver).invoke(said(word), at())
    started = [threading.Event() for _ in range(RUNS * len(savers))]

    def run(number: int) -> None:
        pauses = iter([chosen.uniform(0, 0.1) for _ in range(2)])

        def pause() -> None:
            started[number].set()
            time.sleep(next(pauses))

        try:
            saver, name = savers[number % len(savers)], f"thread{number}" if number % 2 else "talk"
            graph_of(saver, before(pause), before(pause)).invoke(said(word), at(name))
        finally:
            started[number].set()

    running: list[Future[Any]] = [
        pool.submit(in_thread, partial(run, number)) for number in range(len(started))
    ]
    assert all(event.wait(WAIT_S) for event in started)
    time.sleep(pause_s)
    remove(scope)
    errors = [result.exception(WAIT_S) for result in running]
    assert all(error is None or isinstance(error, ChatMemoryError) for error in errors)
    return {error is None for error in errors}


@pytest.mark.parametrize("remove", [redact, purge, erase])
def test_no_removed_word_is_in_a_dump(remove):
    chosen = random.Random(3)  # noqa: S311  # no secret
    words = [f"canary{number}" for number in range(ROUNDS)]
    ended: set[bool] = set()
    with ThreadPoolExecutor(2 * RUNS + OTHERS) as pool, other_people(pool):
        for word, pause_s in zip(words, cycle(PAUSES_S), strict=False):
            ended |= remove_during_runs(pool, chosen, remove, word, pause_s)
    assert b"reply to turn" in dump()
    assert [word for word in words if word.encode() in dump()] == []
    assert ended == {True, False}
