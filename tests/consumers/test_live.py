"""While the channel layer fails, clients are notified that changes may arrive late."""

from __future__ import annotations

import pytest

from chatmemory.live.hub import hub
from chatmemory.live.layer import RUNNERS, Layer, group_of
from chatmemory.models import Session
from tests.factories import make_session
from tests.servers import Tab, connected, eventually, live_process, sign_in

pytestmark = pytest.mark.django_db(transaction=True)


live = live_process


@pytest.fixture
def ann(live, settings, monkeypatch):
    monkeypatch.setattr(Layer, "retry_seconds", 0.05)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LEASE": 600}
    person = sign_in()
    make_session(owner=person.user)
    return person


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["is_cut", "is_frozen"])
async def test_clients_are_notified_when_the_layer_fails_and_when_it_works_again(ann, wire, fault):
    group = group_of((await Session.objects.aget()).pk)
    async with connected(tab := Tab(ann)):
        # Both groups are joined, so that the next call of the layer is the one below.
        await eventually(lambda: {RUNNERS, group} <= hub._layer._joined)
        before = next(frame for frame in tab.frames if frame["type"] == "session")
        assert before["live"] is True
        setattr(wire, fault, True)
        hub.notify_runners(7)
        await eventually(lambda: not hub.is_layer_working, "the failure is not detected")
        assert (await tab.until("session", live=False))["last_seq"] == 0
        await tab.send("hi")
        assert (await tab.idle(2))["live"] is False
        setattr(wire, fault, False)
        await eventually(lambda: hub.is_layer_working, "the recovery is not detected")
        await tab.until("session", live=True)  # without another change of the session


async def test_a_process_alone_is_live(ann):
    async with connected(tab := Tab(ann)):
        await tab.send("hi")
        await tab.idle(2)
    assert {frame["live"] for frame in tab.frames if frame["type"] == "session"} == {True}
