"""Async versions: bounded threads, one write of a session at a time, no connection left open."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import override_settings

from chatmemory import services
from chatmemory.database.pool import TenantSchemasUnsupported, in_pool
from chatmemory.database.retries import durably
from chatmemory.errors import Held, MemoryUnavailable
from chatmemory.memory import ChatMemory
from chatmemory.models import Message, Session
from chatmemory.services import SERVER, Actor, aappend_messages, aread_history
from tests.factories import BY, TALK, make_messages, make_session
from tests.servers import DEADLINE

commits = pytest.mark.django_db(transaction=True)


class ConcurrentCalls:
    """Work that counts how many calls run concurrently, by name and in all.

    Each call waits until `count` of them run, so their number must be a multiple of `count`.
    """

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)
        self.lock = threading.Lock()
        self.running: dict[str, int] = {}
        self.max_by_name: dict[str, int] = {}
        self.max_in_all = 0
        self.threads: set[str] = set()

    def __call__(self, name: str) -> str:
        with self.lock:
            self.running[name] = self.running.get(name, 0) + 1
            self.max_by_name[name] = max(self.max_by_name.get(name, 0), self.running[name])
            self.max_in_all = max(self.max_in_all, sum(self.running.values()))
            self.threads.add(threading.current_thread().name)
        self.barrier.wait(DEADLINE)
        time.sleep(0.03)  # so that a call that must wait would start, if it did not
        with self.lock:
            self.running[name] -= 1
        return name


def gather(function: Any, names: str) -> list[Any]:
    async def call() -> list[Any]:
        return await asyncio.gather(*[function(name) for name in names])

    return asyncio.run(call())


@override_settings(CHATMEMORY={"DB_THREADS": 3})
def test_calls_of_one_lane_run_sequentially_and_lanes_run_concurrently():
    work = ConcurrentCalls(2)
    in_thread = in_pool(work.__call__, lane=lambda name: (name,))
    assert gather(in_thread, "aaabbb") == list("aaabbb")
    assert work.max_by_name == {"a": 1, "b": 1}
    assert work.max_in_all == 2


@override_settings(CHATMEMORY={"DB_THREADS": 3})
def test_no_more_calls_run_than_there_are_threads():
    work = ConcurrentCalls(3)
    gather(in_pool(work.__call__), "abcdefghi")
    assert work.max_in_all == 3
    assert all(name.startswith("chatmemory-db") for name in work.threads)


@override_settings(CHATMEMORY={"DB_THREADS": 2})
def test_a_cancelled_call_keeps_its_lane_until_it_ends():
    started: list[str] = []
    is_running, can_end = threading.Event(), threading.Event()

    def work(_: str, call: str) -> None:
        started.append(call)
        is_running.set()
        assert call != "first" or can_end.wait(DEADLINE)

    in_thread = in_pool(work, lane=lambda session, _: (session,))

    async def cancel_and_call_again() -> list[str]:
        first = asyncio.create_task(in_thread("a", "first"))
        assert await asyncio.to_thread(is_running.wait, DEADLINE)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(in_thread("a", "second"))
        # Without the lane, the only free thread would run the second call before this one.
        await asyncio.create_task(in_thread("b", "other"))
        started_before_the_end = started.copy()
        can_end.set()
        await second
        return started_before_the_end

    assert asyncio.run(cancel_and_call_again()) == ["first", "other"]
    assert started == ["first", "other", "second"]


@override_settings(CHATMEMORY={"DB_THREADS": 3})
def test_a_failed_call_releases_its_lane():
    def fail(name: str) -> None:
        raise ValueError(name)

    in_thread = in_pool(fail, lane=lambda name: (name,))
    for _ in range(2):
        with pytest.raises(ValueError, match="a"):
            gather(in_thread, "a")


@commits
@override_settings(CHATMEMORY={"DB_THREADS": 1}, DEBUG=True)
def test_the_queries_that_django_records_for_debugging_do_not_accumulate():
    def query(_: str) -> tuple[int, bool]:
        before = len(connection.queries)
        Message.objects.count()
        return before, bool(connection.queries)

    assert gather(in_pool(query), "abc") == [(0, True)] * 3


@override_settings(CHATMEMORY={"DB_THREADS": 0})
def test_without_a_pool_calls_run_on_djangos_thread():
    in_thread = in_pool(lambda: threading.current_thread().name)
    assert async_to_sync(in_thread)() == threading.current_thread().name


@pytest.mark.django_db
async def test_a_test_that_rolls_back_sees_the_writes_of_the_pool():
    await services.aopen_session(**TALK)
    await aappend_messages(**TALK, messages=make_messages("a"))
    assert [row.text for row in (await aread_history(**TALK)).rows] == ["a"]


@pytest.mark.regression
@pytest.mark.django_db
@pytest.mark.parametrize("threads", [0, 2])
def test_a_connection_with_a_schema_per_tenant_is_refused(monkeypatch, threads):
    """Like that of django-tenants, whose other threads use the public schema."""
    monkeypatch.setattr(BaseDatabaseWrapper, "set_schema", lambda *_: None, raising=False)
    with (
        override_settings(CHATMEMORY={"DB_THREADS": threads}),
        pytest.raises(TenantSchemasUnsupported, match="E014"),
    ):
        async_to_sync(aappend_messages)(**TALK, messages=make_messages("a"), create=True)
    assert not Message.objects.exists()


@commits
@pytest.mark.database
def test_concurrent_calls_leave_no_connection_open():
    make_session()
    closed_at_end = []

    async def call() -> None:
        messages = [make_messages(str(number)) for number in range(12)]
        await asyncio.gather(*[aappend_messages(**TALK, messages=m) for m in messages])
        is_closed = in_pool(lambda: connection.connection is None)
        closed_at_end.extend(await asyncio.gather(*[is_closed() for _ in range(8)]))

    asyncio.run(call())
    assert Message.objects.count() == 12
    assert closed_at_end == [True] * 8


EXITING_PROGRAM = """
import asyncio, threading
import django
django.setup()
from chatmemory.database.pool import TenantSchemasUnsupported, in_pool

started, hangs = threading.Event(), {hangs}

def work():
    started.set()
    if hangs:
        threading.Event().wait()
    has_exited_loop.wait()
    print("done")

async def main():
    asyncio.ensure_future(in_pool(work)())
    await asyncio.to_thread(started.wait)

has_exited_loop = threading.Event()
asyncio.run(main())
has_exited_loop.set()
"""


@pytest.mark.long
@pytest.mark.parametrize(("hangs", "printed"), [(False, "done\n"), (True, "")])
def test_the_exit_of_a_process_waits_for_running_calls_for_a_short_time(hangs, printed):
    process = subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-c", EXITING_PROGRAM.replace("{hangs}", str(hangs))],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert (process.returncode, process.stdout) == (0, printed), process.stderr


@pytest.mark.regression
@override_settings(CHATMEMORY={"DB_THREADS": 3})
@pytest.mark.parametrize(("error", "count"), [(Held(), 0), (MemoryUnavailable(), 1)])
def test_a_cancelled_call_that_is_refused_logs_nothing(caplog, error, count):
    started, can_fail = threading.Event(), threading.Event()

    def refuse():
        started.set()
        can_fail.wait(DEADLINE)
        raise error

    async def cancel():
        call = asyncio.create_task(in_pool(refuse)())
        await asyncio.to_thread(started.wait, DEADLINE)
        call.cancel()
        can_fail.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=DEADLINE)

    asyncio.run(cancel())
    assert len(caplog.records) == count


@pytest.mark.regression
@override_settings(CHATMEMORY={"DB_THREADS": 3})
@pytest.mark.parametrize("lane", [None, lambda **_: ("lane",)])
def test_the_error_of_a_cancelled_call_is_logged_and_not_reported_as_unread(caplog, lane):
    started, can_fail = threading.Event(), threading.Event()
    reported = []

    def fail():
        started.set()
        can_fail.wait(DEADLINE)
        raise LookupError("sk-canary")

    async def cancel():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
        call = asyncio.create_task(in_pool(fail, lane=lane)())
        await asyncio.to_thread(started.wait, DEADLINE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        del call
        can_fail.set()
        async with asyncio.timeout(DEADLINE):
            while "a call failed after its caller was cancelled" not in caplog.text:  # noqa: ASYNC110  # a log
                await asyncio.sleep(0.01)
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(cancel())
    assert reported == []
    assert "builtins.LookupError" in caplog.text
    assert "sk-canary" not in caplog.text


@pytest.mark.regression
@pytest.mark.parametrize(
    "name", ["append_messages", "open_session", "read_page", "clear_session", "list_sessions"]
)
async def test_in_an_event_loop_a_service_names_its_async_version(db, name):
    more = {
        "append_messages": {"messages": make_messages("a")},
        "clear_session": {"reason": "test"},
    }
    address = {"by": BY, "scope": SERVER} if name == "list_sessions" else TALK
    with pytest.raises(SynchronousOnlyOperation, match=rf"`await a{name}\("):
        getattr(services, name)(**address, **more.get(name, {}))


async def test_in_an_event_loop_the_outermost_function_names_its_async_version(db):
    memory = ChatMemory("talk", by=Actor.server("test"), scope="server")
    with pytest.raises(SynchronousOnlyOperation, match=r"`await asave_context\("):
        memory.save_context("a", "b")


@pytest.mark.regression
@override_settings(CHATMEMORY={"DB_THREADS": 0})
def test_a_callable_without_a_name_can_have_an_async_version():
    assert async_to_sync(in_pool(partial(int, "7")))() == 7


async def test_in_an_event_loop_work_without_an_async_version_is_sent_to_a_thread(db):
    with pytest.raises(SynchronousOnlyOperation, match="call this in a thread"):
        durably(Session.objects.exists, is_repeatable=True)


@pytest.mark.parametrize("service", [services.hold_session, services.purge_session])
async def test_in_an_event_loop_a_service_without_an_async_version_names_none(db, service):
    in_pool(service)  # as code does that calls it in the pool without giving it a name
    with pytest.raises(SynchronousOnlyOperation, match="call this in a thread"):
        service(**TALK, reason="test")
