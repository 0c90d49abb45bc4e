"""A restore drops the tables and creates them again: sockets and sweeps wait, without an alarm."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from asgiref.sync import sync_to_async as db
from django.db import connection
from django.test import Client

from tests.locking import second_connection
from tests.servers import Tab, connected, eventually, person_with_talk

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.database,
    pytest.mark.regression,
    pytest.mark.skipif(connection.vendor == "sqlite", reason="its error has no code of its own"),
]

ann = person_with_talk


def rename(old: str, new: str) -> None:
    with second_connection() as other, other.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")


@asynccontextmanager
async def without(table: str):
    """Hide a table of ours."""
    await db(rename)(table, "hidden")
    try:
        yield
    finally:
        await db(rename)("hidden", table)


def get_sessions(person) -> int:
    client = Client()
    client.force_login(person.user)
    return client.get("/api/sessions/").status_code


@pytest.mark.slow
@pytest.mark.parametrize("table", ["chatmemory_session", "chatmemory_message", "chatmemory_turn"])
async def test_a_missing_table_is_a_database_that_is_unavailable(ann, monkeypatch, caplog, table):
    monkeypatch.setattr("chatmemory.live.hub.hub.sweep.seconds", 0.1)
    async with connected(tab := Tab(ann)):
        async with without(table):
            answer = await tab.send("hi")
            assert (answer["code"], answer["retry"]) == ("unavailable", True)
            await tab.send_frame("fetch", id="f1", before_seq=9)
            opening = Tab(ann)
            await opening.__aenter__()
            await opening.send_frame("hello", v=1)
            if table != "chatmemory_message":
                await eventually(lambda: "a sweep failed" in caplog.text)
            if table == "chatmemory_session":
                assert await db(get_sessions)(ann) == 503
        await opening.until("synced")
        assert (await tab.send("hi"))["type"] == "ok"
        await tab.idle(2)
        await opening.__aexit__(None, None, None)
    assert "Traceback" not in caplog.text
    assert "ProgrammingError" not in caplog.text
