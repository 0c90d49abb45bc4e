"""The executor whose threads do not delay the exit of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from chatmemory.database.threads import DaemonExecutor
from tests.servers import DEADLINE


@pytest.fixture
def executor():
    executor = DaemonExecutor(2, name="test")
    yield executor
    executor.shutdown()


def thread_name():
    return threading.current_thread().name


def test_a_future_has_the_result_or_the_error_of_its_call(executor):
    assert executor.submit(divmod, 7, 2).result(DEADLINE) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 7, 0).result(DEADLINE)
    with pytest.raises(SystemExit):
        executor.submit(exit).result(DEADLINE)
    assert list(executor.map(str, [1, 2, 3])) == ["1", "2", "3"]


def test_an_idle_thread_is_used_before_another_is_started(executor):
    assert {executor.submit(thread_name).result(DEADLINE) for _ in range(20)} == {"test_0"}
    assert executor.submit(lambda: threading.current_thread().daemon).result(DEADLINE)


def test_calls_beyond_the_number_of_threads_wait_and_can_be_cancelled(executor):
    both, go, done = threading.Barrier(3), threading.Event(), []

    def wait():
        both.wait(DEADLINE)
        go.wait(DEADLINE)

    first = [executor.submit(wait) for _ in range(2)]
    later = [executor.submit(done.append, n) for n in range(3)]
    both.wait(DEADLINE)
    assert later[1].cancel()
    assert not done
    go.set()
    for call in [*first, later[0], later[2]]:
        call.result(DEADLINE)
    assert sorted(done) == [0, 2]


def test_shutdown_ends_the_queued_calls_and_accepts_no_others():
    executor, done = DaemonExecutor(1, name="test"), []
    for n in range(20):
        executor.submit(done.append, n)
    executor.shutdown()
    assert done == list(range(20))
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(thread_name)


def test_join_with_a_timeout_leaves_a_hanging_call(executor):
    go = threading.Event()
    call = executor.submit(go.wait)
    executor.shutdown(wait=False)
    executor.join(0.01)
    assert not call.done()
    go.set()
    assert call.result(DEADLINE)


def test_shutdown_can_cancel_the_queued_calls_but_not_the_running_one():
    executor, began, go = DaemonExecutor(1, name="test"), threading.Event(), threading.Event()

    def wait():
        began.set()
        return go.wait(DEADLINE)

    first, later = executor.submit(wait), executor.submit(thread_name)
    assert began.wait(DEADLINE)
    executor.shutdown(wait=False, cancel_futures=True)
    assert later.cancelled()
    go.set()
    assert first.result(DEADLINE)
    executor.join(DEADLINE)


@pytest.fixture
def no_threads(monkeypatch):
    """No thread can be started until this event is cleared."""
    refuses = threading.Event()
    refuses.set()
    start = threading.Thread.start

    def start_or_refuse(thread):
        if refuses.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return refuses


def test_a_refused_thread_is_started_at_the_next_call(executor, no_threads):
    with pytest.raises(RuntimeError, match="new thread"):
        executor.submit(thread_name)
    no_threads.clear()
    assert executor.submit(thread_name).result(DEADLINE) == "test_0"


def test_a_call_waits_for_the_existing_threads_if_no_other_can_start(executor, no_threads):
    began, go = threading.Event(), threading.Event()

    def wait():
        began.set()
        return go.wait(DEADLINE)

    no_threads.clear()
    first = executor.submit(wait)
    assert began.wait(DEADLINE)
    no_threads.set()
    second = executor.submit(thread_name)
    no_threads.clear()
    assert executor.submit(thread_name).result(DEADLINE) == "test_1"
    go.set()
    assert first.result(DEADLINE)
    assert second.result(DEADLINE) in {"test_0", "test_1"}


FORKS = """
import os, threading
from chatmemory.database.threads import DaemonExecutor
executor, go = DaemonExecutor(2, name="test"), threading.Event()
executor.submit(int).result(20)
calls = [executor.submit(go.wait, 20) for _ in range(3)]
child = os.fork()
if not child:
    print(executor.submit(divmod, 7, 2).result(20), flush=True)
    executor.shutdown()
    os._exit(0)
os.waitpid(child, 0)
go.set()
print([call.result(20) for call in calls])
"""


def test_a_forked_process_has_its_own_threads():
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = subprocess.run(  # noqa: S603  # our own program
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["(3, 1)", "[True, True, True]"], done.stderr


def test_an_event_loop_accepts_it_as_its_default_executor(executor):
    async def main():
        asyncio.get_running_loop().set_default_executor(executor)
        return await asyncio.to_thread(thread_name)

    assert asyncio.run(main()).startswith("test_")
