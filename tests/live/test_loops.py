"""An event loop in a thread: starts at first use, survives errors, stops and starts again."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from chatmemory.live.loops import LoopThread
from tests.servers import DEADLINE, wait_for

NAME = "test-loop"


@pytest.fixture
def thread():
    found = LoopThread(NAME)
    yield found
    found.stop()


def running():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


async def current_thread():
    return threading.current_thread()


async def for_ever():
    await asyncio.Event().wait()


def test_the_thread_starts_at_first_use(thread):
    assert not thread.is_started
    thread.call_if_started(lambda: None)
    assert not running()
    assert thread.submit(current_thread()).result(DEADLINE).name == NAME
    assert thread.is_started


def test_stop_cancels_tasks_and_ends_the_thread(thread):
    future = thread.submit(for_ever())
    thread.call(lambda: None)
    thread.stop()
    with pytest.raises(CancelledError):
        future.result(DEADLINE)
    assert not running()


def test_the_next_use_after_a_stop_starts_a_new_thread(thread):
    first = thread.submit(current_thread()).result(DEADLINE)
    thread.stop()
    assert thread.submit(current_thread()).result(DEADLINE) is not first


def test_background_tasks_run_from_the_start_and_again_after_a_stop():
    started = []

    async def background():
        started.append(threading.current_thread())
        await for_ever()

    thread = LoopThread(NAME, background=lambda: [background()])
    for count in (1, 2):
        thread.loop()
        wait_for(lambda count=count: len(started) == count, "the background task did not start")
        thread.stop()
    assert started[0] is not started[1]
    assert not running()


@pytest.mark.regression
def test_a_stop_before_the_loop_runs_ends_it_without_an_error(caplog):
    is_stopped = threading.Event()

    def background():
        is_stopped.wait(DEADLINE)
        return [for_ever()]

    thread = LoopThread(NAME, background=background)
    loop = thread.loop()
    stopping = threading.Thread(target=thread.stop)
    stopping.start()
    wait_for(lambda: not thread.is_started, "the stop has not begun")
    wait_for(lambda: loop._ready, "the stop has not reached the loop")
    is_stopped.set()
    stopping.join(DEADLINE)
    assert not running()
    assert not caplog.records


def test_a_task_that_exits_does_not_end_the_loop(thread, caplog):
    async def leave():
        raise SystemExit("enough")

    thread.submit(leave())
    wait_for(
        lambda: "ended the loop of test-loop; the loop continues" in caplog.text, "no log line"
    )
    assert thread.submit(current_thread()).result(DEADLINE).name == NAME
    assert "enough" not in caplog.text


def test_stop_lets_a_task_finish_that_a_cancelled_one_started(thread):
    release, finished = asyncio.Event(), threading.Event()

    async def finish():
        await release.wait()
        finished.set()

    async def shield():
        inner = asyncio.ensure_future(finish())
        try:
            await asyncio.shield(inner)
        finally:
            release.set()

    started = thread.submit(shield())
    thread.call(lambda: None)
    wait_for(lambda: len(thread._tasks) == 1, "the task did not start")
    thread.stop()
    assert started.cancelled()
    assert finished.is_set()
