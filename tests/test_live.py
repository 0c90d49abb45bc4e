"""While the channel layer fails, the sockets of the process are told that news may come late."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async as db

from chatmemory.hub import hub
from chatmemory.layer import RUNNERS
from tests.factories import make_session
from tests.servers import Tab, eventually, greeted, own_threads, sign_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann(transactional_db, settings, monkeypatch):
    monkeypatch.setattr("chatmemory.hub.SWEEP_SECONDS", 60)
    monkeypatch.setattr("chatmemory.layer.RETRY_SECONDS", 0.05)
    settings.CHATMEMORY = {"RESPONDER": "tests.responders_for_tests.echo", "LEASE": 600}
    with own_threads():
        person = sign_in()
        make_session(owner=person.user)
        yield person


@pytest.mark.parametrize("fault", ["is_cut", "is_frozen"])
async def test_a_layer_that_fails_is_told_of_and_so_is_that_it_works_again(ann, wire, fault):
    async with greeted(tab := Tab(ann)):
        await eventually(lambda: wire.groups.get(RUNNERS))
        setattr(wire, fault, True)
        hub.call_runners(7)
        assert (await tab.until("session", live=False))["last_seq"] == 0
        await tab.send("hi")
        await tab.idle(2)
        setattr(wire, fault, False)
        await tab.until("session", live=True)  # though nothing more is to be told
    before = next(frame for frame in tab.frames if frame["type"] == "session")
    assert before["live"] is True


async def test_a_process_alone_is_live(ann):
    async with greeted(tab := Tab(ann)):
        await tab.send("hi")
        await tab.idle(2)
    assert {frame["live"] for frame in tab.frames if frame["type"] == "session"} == {True}
    await db(hub.shut_down)()
