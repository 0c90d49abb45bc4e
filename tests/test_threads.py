"""The executor that keeps no process from its end; `test_pool` and `test_servers` end some."""

from __future__ import annotations

import asyncio
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
    assert {executor.submit(name).result(DEADLINE) for _ in range(20)} <= {"test_0", "test_1"}
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


def test_an_event_loop_takes_it_for_its_own(executor):
    async def main():
        asyncio.get_running_loop().set_default_executor(executor)
        return await asyncio.to_thread(name)

    assert asyncio.run(main()).startswith("test_")
