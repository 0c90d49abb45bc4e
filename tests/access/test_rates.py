"""Rate limits: a client that waits for the stated delay may send again."""

from __future__ import annotations

import json

import pytest
from django.core.cache import cache

from chatmemory import protocol
from chatmemory.access.rates import check_rate, check_reads, check_writes
from chatmemory.errors import RateLimited
from chatmemory.services import Actor

ANN = Actor("user", "1", "ann")


@pytest.mark.regression
@pytest.mark.parametrize("check", [check_rate, check_reads, check_writes])
@pytest.mark.parametrize("second", [0, 0.3, 59.9, 59.9996])
def test_a_call_is_accepted_after_the_returned_delay(monkeypatch, settings, check, second):
    limits = ("SENDS_PER_MINUTE", "READS_PER_MINUTE", "WRITES_PER_MINUTE")
    settings.CHATMEMORY = dict.fromkeys(limits, 1)
    clock = [29_000_000 * 60 + second]
    monkeypatch.setattr("chatmemory.access.rates.time.time", lambda: clock[0])
    cache.clear()
    check(ANN)
    with pytest.raises(RateLimited) as refused:
        check(ANN)
    clock[0] += json.loads(protocol.dump_error(refused.value))["retry_after_ms"] / 1000
    check(ANN)
    cache.clear()
