"""The executor that keeps no process from its end; `test_pool` and `test_servers` end some."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from chatmemory.threads import DaemonExecutor
from tests.servers import DEADLINE


@pytest.fixture
def executor():
    executor = DaemonExecutor(2, name="test")
    yield executor
    executor.shutdown()


def name():
    return threading.current_thread().name


def test_a_call_returns_what_it_returns_and_raises_what_it_raises(executor):
    assert executor.submit(divmod, 7, 2).result(DEADLINE) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 7, 0).result(DEADLINE)
    with pytest.raises(SystemExit):
        executor.submit(exit).result(DEADLINE)
    assert list(executor.map(str, [1, 2, 3])) == ["1", "2", "3"]


def test_a_thread_that_is_idle_is_taken_before_another_is_begun(executor):
    assert {executor.submit(name).result(DEADLINE) for _ in range(20)} == {"test_0"}
    assert executor.submit(lambda: threading.current_thread().daemon).result(DEADLINE)


def test_as_many_calls_as_threads_are_at_work_and_the_rest_in_order_behind_them(executor):
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


def test_what_was_taken_is_done_before_the_end_and_nothing_is_taken_after_it():
    executor, done = DaemonExecutor(1, name="test"), []
    for n in range(20):
        executor.submit(done.append, n)
    executor.shutdown()
    assert done == list(range(20))
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(name)


def test_an_end_that_is_waited_for_only_so_long_leaves_what_hangs(executor):
    go = threading.Event()
    call = executor.submit(go.wait)
    executor.shutdown(wait=False)
    executor.join(0.01)
    assert not call.done()
    go.set()
    assert call.result(DEADLINE)


def test_an_end_that_cancels_what_waits_ends_what_has_begun():
    executor, began, go = DaemonExecutor(1, name="test"), threading.Event(), threading.Event()

    def wait():
        began.set()
        return go.wait(DEADLINE)

    first, later = executor.submit(wait), executor.submit(name)
    assert began.wait(DEADLINE)
    executor.shutdown(wait=False, cancel_futures=True)
    assert later.cancelled()
    go.set()
    assert first.result(DEADLINE)
    executor.join(DEADLINE)


@pytest.fixture
def scarce(monkeypatch):
    """No thread can be begun, until the fixture is cleared."""
    is_scarce = threading.Event()
    is_scarce.set()
    start = threading.Thread.start

    def start_if_there_is_one(thread):
        if is_scarce.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_there_is_one)
    return is_scarce


def test_a_thread_that_the_system_did_not_give_is_asked_for_again(executor, scarce):
    with pytest.raises(RuntimeError, match="new thread"):
        executor.submit(name)
    scarce.clear()
    assert executor.submit(name).result(DEADLINE) == "test_0"


def test_a_call_waits_for_the_threads_that_there_are(executor, scarce):
    began, go = threading.Event(), threading.Event()

    def wait():
        began.set()
        return go.wait(DEADLINE)

    scarce.clear()
    first = executor.submit(wait)
    assert began.wait(DEADLINE)
    scarce.set()
    second = executor.submit(name)
    scarce.clear()
    assert executor.submit(name).result(DEADLINE) == "test_1"
    go.set()
    assert first.result(DEADLINE)
    assert second.result(DEADLINE) in {"test_0", "test_1"}


FORKS = """
import os, threading
from chatmemory.threads import DaemonExecutor
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


def test_a_forked_process_has_threads_of_its_own():
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = subprocess.run(  # noqa: S603  # our own program
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["(3, 1)", "[True, True, True]"], done.stderr


def test_an_event_loop_takes_it_for_its_own(executor):
    async def main():
        asyncio.get_running_loop().set_default_executor(executor)
        return await asyncio.to_thread(name)

    assert asyncio.run(main()).startswith("test_")
