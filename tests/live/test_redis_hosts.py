"""A channel layer with two Redis hosts, one of which dies or freezes."""

from __future__ import annotations

import signal

import pytest
from channels_redis.pubsub import RedisPubSubChannelLayer
from channels_redis.utils import _consistent_hash

from chatmemory.live import layer as layer_module
from chatmemory.live.hub import Hub
from chatmemory.live.layer import group_of
from chatmemory.live.texts import SessionRef
from tests.layers import FakeSocket
from tests.programs.torture.world import Redis
from tests.servers import wait_for

pytestmark = pytest.mark.long

SESSIONS = range(1, 41)
EPOCH = 1


@pytest.fixture
def hosts(tmp_path):
    """Two Redis processes."""
    found = [Redis(tmp_path), Redis(tmp_path)]
    for host in found:
        host.start()
    yield found
    for host in found:
        host.signal(signal.SIGCONT)
        host.kill()


@pytest.fixture
def hubs(hosts, monkeypatch):
    """Two hubs, as of two processes, that share a layer on both hosts."""
    urls = [{"address": host.url, "socket_timeout": None} for host in hosts]
    layer = RedisPubSubChannelLayer(hosts=urls)
    monkeypatch.setattr(layer_module, "get_channel_layer", lambda: layer)
    found = Hub(), Hub()
    yield found
    for hub in found:
        hub.shut_down()


def host_of(session_pk):
    return _consistent_hash(f"asgi__group__{group_of(session_pk)}", 2)


class Conversations:
    """Runs in one process, each with a socket in another one."""

    def __init__(self, here, there):
        self.here, self.there = here, there
        self.texts = {}
        for number in SESSIONS:
            there.join(SessionRef(number, EPOCH), FakeSocket())
            self.texts[number] = here.begin_text(SessionRef(number, EPOCH), f"c{number}", 0)

    def grow(self, numbers):
        for number in numbers:
            self.texts[number].pieces.append("word ")
            self.here.publish(SessionRef(number, EPOCH))

    def lag(self, numbers):
        """Return the sessions whose text differs between the two processes."""
        return [
            number
            for number in numbers
            if (seen := self.there.text_of(SessionRef(number, EPOCH))) is None
            or seen.text != self.texts[number].text
        ]

    def extended_show(self, goal):
        """Extend these texts, as a loss is noticed at the next piece; whether they show `goal`."""
        self.grow(goal)
        seen = {number: self.there.text_of(SessionRef(number, EPOCH)) for number in goal}
        return all(seen[number] and seen[number].text.startswith(goal[number]) for number in goal)

    def follow(self, numbers, otherwise):
        """Extend these texts, and wait until both processes show them."""
        self.grow(numbers)
        wait_for(lambda: not self.lag(numbers), otherwise)


@pytest.mark.regression
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("dead", [0, 1])
def test_a_dead_host_stops_only_the_text_of_its_own_sessions(hubs, hosts, how, dead):
    conversations = Conversations(*hubs)
    healthy = [number for number in SESSIONS if host_of(number) != dead]
    assert 5 < len(healthy) < 35
    conversations.follow(SESSIONS, "the texts were not shown before the failure")
    if how is signal.SIGKILL:
        hosts[dead].kill()
    else:
        hosts[dead].signal(how)
    conversations.grow(SESSIONS)
    wait_for(lambda: not conversations.here.is_layer_working, "the failure is not detected")
    for _ in range(5):
        conversations.grow(set(SESSIONS) - set(healthy))
        conversations.follow(healthy, "the sessions of the healthy host are not live")
    hosts[dead].start()
    hosts[dead].signal(signal.SIGCONT)
    goal = {number: text.text for number, text in conversations.texts.items()}
    wait_for(lambda: conversations.extended_show(goal), "the sessions are not live again")
    wait_for(lambda: conversations.here.is_layer_working, "the recovery is not detected")
