"""The twins: bounded threads, one write of a session at a time, nothing left open."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import override_settings

from chatmemory import services
from chatmemory.memory import ChatMemory
from chatmemory.models import Message, Session
from chatmemory.services import Actor, aappend_messages, aread_history
from chatmemory.services.faults import durably
from chatmemory.services.pool import TenantSchemasUnsupported, in_pool
from tests.factories import TALK, make_session, said
from tests.servers import DEADLINE

commits = pytest.mark.django_db(transaction=True)

LAZY = {"check_integrity", "sessions_of", "verify_audit"}
PURE = {
    "deleting_users",
    "importing",
    "in_run",
    "retention_rules",
    "running",
    "scope_for",
    "user_scope",
}
IN_A_TRANSACTION = {"forget_user"}
"""Called by Django's synchronous signals."""
WITHOUT_TWIN = LAZY | PURE | IN_A_TRANSACTION


def test_each_service_that_works_with_the_database_has_a_twin():
    functions = {name for name in services.__all__ if inspect.isfunction(getattr(services, name))}
    twins = {name for name in functions if inspect.iscoroutinefunction(getattr(services, name))}
    plain = functions - twins
    assert twins == {f"a{name}" for name in plain - WITHOUT_TWIN}
    for name in plain - WITHOUT_TWIN:
        assert getattr(services, f"a{name}").__wrapped__ is getattr(services, name)


class Watched:
    """A piece of work that tells how many of its kind were under way at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.most_of_all = 0
        self.threads: set[str] = set()

    def __call__(self, name: str) -> str:
        with self.lock:
            self.now[name] = self.now.get(name, 0) + 1
            self.most[name] = max(self.most.get(name, 0), self.now[name])
            self.most_of_all = max(self.most_of_all, sum(self.now.values()))
            self.threads.add(threading.current_thread().name)
        time.sleep(0.03)
        with self.lock:
            self.now[name] -= 1
        return name


def gather(twin: Any, names: str) -> list[Any]:
    async def call() -> list[Any]:
        return await asyncio.gather(*[twin(name) for name in names])

    return asyncio.run(call())


@override_settings(CHATMEMORY={"DB_THREADS": 3})
def test_sessions_are_worked_on_side_by_side_and_each_by_one_at_a_time():
    work = Watched()
    twin = in_pool(work.__call__, lane=lambda name: (name,))
    assert gather(twin, "aaabbb") == list("aaabbb")
    assert work.most == {"a": 1, "b": 1}
    assert work.most_of_all == 2


@override_settings(CHATMEMORY={"DB_THREADS": 3})
def test_no_more_threads_work_than_are_allowed():
    work = Watched()
    gather(in_pool(work.__call__), "abcdefgh")
    assert work.most_of_all == 3
    assert all(name.startswith("chatmemory-db") for name in work.threads)


@override_settings(CHATMEMORY={"DB_THREADS": 3})
def test_a_cancelled_call_keeps_its_session_until_it_is_done():
    work = Watched()
    twin = in_pool(work.__call__, lane=lambda name: (name,))

    async def cancel_and_call_again() -> None:
        first = asyncio.create_task(twin("a"))
        await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await twin("a")

    asyncio.run(cancel_and_call_again())
    assert work.most == {"a": 1}


@override_settings(CHATMEMORY={"DB_THREADS": 3})
def test_a_call_that_fails_lets_the_next_one_go_on():
    def fail(name: str) -> None:
        raise ValueError(name)

    twin = in_pool(fail, lane=lambda name: (name,))
    for _ in range(2):
        with pytest.raises(ValueError, match="a"):
            gather(twin, "a")


@commits
@override_settings(CHATMEMORY={"DB_THREADS": 1}, DEBUG=True)
def test_the_queries_that_django_keeps_for_debugging_do_not_pile_up():
    def look(_: str) -> tuple[int, bool]:
        before = len(connection.queries)
        Message.objects.count()
        return before, bool(connection.queries)

    assert gather(in_pool(look), "abc") == [(0, True)] * 3


@override_settings(CHATMEMORY={"DB_THREADS": 0})
def test_without_threads_of_our_own_djangos_thread_works():
    twin = in_pool(lambda: threading.current_thread().name)
    assert async_to_sync(twin)() == threading.current_thread().name


@pytest.mark.django_db
async def test_a_test_that_rolls_back_sees_what_the_twins_wrote():
    await services.aopen_session(**TALK)
    await aappend_messages(**TALK, messages=said("a"))
    assert [row.text for row in (await aread_history(**TALK)).rows] == ["a"]


@pytest.mark.regression
@pytest.mark.django_db
@pytest.mark.parametrize("threads", [0, 2])
def test_a_connection_with_a_schema_per_tenant_is_refused(monkeypatch, threads):
    """As that of django-tenants, whose other threads are in the public schema."""
    monkeypatch.setattr(BaseDatabaseWrapper, "set_schema", lambda *_: None, raising=False)
    with (
        override_settings(CHATMEMORY={"DB_THREADS": threads}),
        pytest.raises(TenantSchemasUnsupported, match="E014"),
    ):
        async_to_sync(aappend_messages)(**TALK, messages=said("a"), create=True)
    assert not Message.objects.exists()


@commits
@pytest.mark.database
def test_the_twins_write_side_by_side_and_leave_no_connection_open():
    make_session()
    open_at_end = []

    async def call() -> None:
        messages = [said(str(number)) for number in range(12)]
        await asyncio.gather(*[aappend_messages(**TALK, messages=m) for m in messages])
        look = in_pool(lambda: connection.connection is None)
        open_at_end.extend(await asyncio.gather(*[look() for _ in range(8)]))

    asyncio.run(call())
    assert Message.objects.count() == 12
    assert open_at_end == [True] * 8


AT_THE_END = """
import asyncio, threading
import django
django.setup()
from chatmemory.services.pool import TenantSchemasUnsupported, in_pool

begun, hangs = threading.Event(), {hangs}

def work():
    begun.set()
    if hangs:
        threading.Event().wait()
    told.wait()
    print("done")

async def main():
    asyncio.ensure_future(in_pool(work)())
    await asyncio.to_thread(begun.wait)

told = threading.Event()
asyncio.run(main())
told.set()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("hangs", "printed"), [(False, "done\n"), (True, "")])
def test_the_end_of_a_process_waits_for_what_is_under_way_but_not_for_ever(hangs, printed):
    ended = subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-c", AT_THE_END.replace("{hangs}", str(hangs))],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, printed), ended.stderr


@pytest.mark.regression
@override_settings(CHATMEMORY={"DB_THREADS": 3})
@pytest.mark.parametrize("lane", [None, lambda **_: ("lane",)])
def test_the_error_of_a_cancelled_call_is_logged_and_not_reported_as_unread(caplog, lane):
    begun, go_on = threading.Event(), threading.Event()
    reported = []

    def fail():
        begun.set()
        go_on.wait(DEADLINE)
        raise LookupError

    async def cancel():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
        call = asyncio.create_task(in_pool(fail, lane=lane)())
        await asyncio.to_thread(begun.wait, DEADLINE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        del call
        go_on.set()
        async with asyncio.timeout(DEADLINE):
            while "a call failed after its caller was cancelled" not in caplog.text:  # noqa: ASYNC110  # a log
                await asyncio.sleep(0.01)
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(cancel())
    assert reported == []


@pytest.mark.regression
@pytest.mark.parametrize(
    "name", ["append_messages", "open_session", "read_page", "clear_session", "expire_sessions"]
)
async def test_in_an_event_loop_a_service_names_its_twin(db, name):
    more = {"append_messages": {"messages": said("a")}, "clear_session": {"reason": "test"}}
    arguments = {} if name == "expire_sessions" else {**TALK, **more.get(name, {})}
    with pytest.raises(SynchronousOnlyOperation, match=rf"`await a{name}\("):
        getattr(services, name)(**arguments)


async def test_in_an_event_loop_the_outermost_function_names_its_twin(db):
    memory = ChatMemory("talk", by=Actor.server("test"), scope="server")
    with pytest.raises(SynchronousOnlyOperation, match=r"`await asave_context\("):
        memory.save_context("a", "b")


async def test_in_an_event_loop_work_without_a_twin_is_sent_to_a_thread(db):
    with pytest.raises(SynchronousOnlyOperation, match="call this in a thread"):
        durably(Session.objects.exists, is_repeatable=True)
