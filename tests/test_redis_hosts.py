"""A channel layer with two Redis hosts, one of which dies or freezes."""

from __future__ import annotations

import signal
import time

import pytest
from channels_redis.pubsub import RedisPubSubChannelLayer
from channels_redis.utils import _consistent_hash

from chatmemory import layer as layer_module
from chatmemory.hub import Hub, Place
from chatmemory.layer import group_of
from tests.layers import Ear
from tests.servers import wait_for
from tests.torture.world import Redis

pytestmark = pytest.mark.slow

SESSIONS = range(1, 41)
EPOCH = 1
LIVE_SECONDS = 5.0
"""By when sessions are live again after their host has returned."""


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
    """Runs in one process, each watched by a socket of another."""

    def __init__(self, here, there):
        self.here, self.there = here, there
        self.texts = {}
        for number in SESSIONS:
            there.join(Place(number, EPOCH), Ear())
            self.texts[number] = here.begin_text(Place(number, EPOCH), f"c{number}", 0)

    def grow(self, numbers):
        for number in numbers:
            self.texts[number].pieces.append("word ")
            self.here.grew(Place(number, EPOCH))

    def lag(self, numbers):
        """The sessions of these whose text is not the same in both processes."""
        return [
            number
            for number in numbers
            if (seen := self.there.text_of(Place(number, EPOCH))) is None
            or seen.text != self.texts[number].text
        ]

    def follow(self, numbers, otherwise):
        """Until all of these are shown what is said next."""
        self.grow(numbers)
        wait_for(lambda: not self.lag(numbers), otherwise)


@pytest.mark.regression
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("dead", [0, 1])
def test_a_dead_host_stops_only_the_text_of_its_own_sessions(hubs, hosts, how, dead):
    talks = Conversations(*hubs)
    healthy = [number for number in SESSIONS if host_of(number) != dead]
    assert 5 < len(healthy) < 35
    talks.follow(SESSIONS, "it is not live before")
    if how is signal.SIGKILL:
        hosts[dead].kill()
    else:
        hosts[dead].signal(how)
    talks.grow(SESSIONS)
    wait_for(lambda: not talks.here.is_live, "the failure is not noticed")
    for _ in range(5):
        began = time.monotonic()
        talks.grow(set(SESSIONS) - set(healthy))
        talks.follow(healthy, "the sessions of the healthy host are not live")
        assert time.monotonic() - began < LIVE_SECONDS
    hosts[dead].start()
    hosts[dead].signal(signal.SIGCONT)
    began = time.monotonic()
    while talks.lag(SESSIONS):
        talks.grow(SESSIONS)
        time.sleep(0.1)
        assert time.monotonic() - began < LIVE_SECONDS, talks.lag(SESSIONS)
    wait_for(lambda: talks.here.is_live, "the return is not noticed")
