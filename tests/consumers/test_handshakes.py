"""The database statements, calls of the pool and tasks of a handshake."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory.consumers import ChatConsumer
from chatmemory.consumers.limits import SocketLimits
from chatmemory.consumers.source import FrameSource
from chatmemory.database import pool
from chatmemory.live.credit import Credit
from chatmemory.live.feed import Feed
from chatmemory.services import append_messages
from tests.factories import TALK, make_messages, make_session
from tests.servers import Tab, sign_in


@pytest.mark.django_db
@pytest.mark.parametrize(("fresh_seconds", "count"), [(60, 4), (0, 5)])
def test_a_handshake_and_hello_take_four_statements(monkeypatch, fresh_seconds, count):
    """The login, its user, the session and its rows.

    A late hello reads the first two again, by one statement.
    """
    monkeypatch.setattr(ChatConsumer, "limits", SocketLimits(fresh_seconds=fresh_seconds))
    ann = sign_in()
    make_session(owner=ann.user)

    async def connect() -> None:
        async with Tab(ann) as tab:
            await tab.hello()

    with CaptureQueriesContext(connection) as queries:
        async_to_sync(connect)()
    assert len(queries) == count


@pytest.mark.django_db
def test_a_handshake_and_hello_call_the_pool_three_times(monkeypatch):
    calls = []
    in_own_thread = pool._in_own_thread

    def recorded(work):
        calls.append(work.func.__name__)
        return in_own_thread(work)

    monkeypatch.setattr(pool, "_in_own_thread", recorded)
    ann = sign_in()
    make_session(owner=ann.user)

    async def connect() -> None:
        async with Tab(ann) as tab:
            await tab.hello()

    async_to_sync(connect)()
    # The first one checks, only in tests, that the pool sees the data of the test.
    assert calls == ["require_visible_data", "login_of_session", "_open_chat", "next_rows"]


async def sent_by_tasks(session) -> tuple[int, int]:
    """Send all frames of a session; return the number of frames and of the tasks that ran."""
    tasks = 0

    def count(loop, coroutine, **options):
        nonlocal tasks
        tasks += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    frames = 0
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    source = FrameSource(Feed(session, None), Credit(SocketLimits()), woken.set)
    loop.set_task_factory(count)
    try:
        while True:
            woken.clear()
            if await source.next_ready() is not None:
                frames += 1
            elif source.is_reading:
                async with asyncio.timeout(10):
                    await woken.wait()
            else:
                return frames, tasks
    finally:
        loop.set_task_factory(None)


@pytest.mark.django_db
def test_the_number_of_tasks_does_not_depend_on_the_number_of_rows():
    few, many = make_session("few"), make_session("many")
    append_messages(**TALK | {"session_key": "few"}, messages=make_messages("a", "b"))
    append_messages(**TALK | {"session_key": "many"}, messages=make_messages(*"abcdefghij"))
    frames_of_few, tasks_of_few = async_to_sync(sent_by_tasks)(few)
    frames_of_many, tasks_of_many = async_to_sync(sent_by_tasks)(many)
    assert (frames_of_few, frames_of_many) == (4, 12)
    assert tasks_of_few == tasks_of_many
