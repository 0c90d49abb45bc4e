"""The database statements of a turn over a socket."""

from __future__ import annotations

import asyncio

import pytest
from django.db import connection
from django.db.backends.utils import CursorWrapper

from chatmemory.models import Turn
from tests.factories import make_session
from tests.servers import Tab, connected, eventually, live_process, sign_in

live = live_process

STATEMENTS = 9
"""Login, admission, start, session, window and end; and two that apply limits and one for the log
of turns."""


@pytest.fixture
def statements(monkeypatch) -> list[str]:
    """The statements of all threads."""
    seen: list[str] = []
    execute = CursorWrapper.execute

    def noted(self, sql, params=None):
        seen.append(sql)
        return execute(self, sql, params)

    monkeypatch.setattr(CursorWrapper, "execute", noted)
    return seen


@pytest.fixture
def ann(live, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LEASE": 600}
    ann = sign_in()
    make_session(owner=ann.user)
    return ann


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
async def test_a_turn_of_a_socket_reads_no_page(ann, statements, page_reads):
    if connection.vendor != "postgresql":
        pytest.skip("on other databases rows are read")

    def is_over() -> bool:
        return any("chatmemory_turn" in sql and "usage" in sql for sql in statements)

    async with connected(tab := Tab(ann)):
        await tab.send("warm up")
        await tab.idle(2)
        await eventually(is_over)  # the log of turns is the last
        counts = []
        for number in range(2, 7):
            await asyncio.sleep(0.1)
            statements.clear(), page_reads.clear()
            await tab.send("hi", client_id=f"c{number}")
            await tab.idle(2 * number)
            await tab.until("synced")
            await eventually(is_over)
            await asyncio.sleep(0.1)
            assert page_reads == []
            counts.append(len(statements))
    assert min(counts) <= STATEMENTS  # a sweep or a renewal of leases may be among the others
    assert await Turn.objects.filter(status="complete").acount() == 6
