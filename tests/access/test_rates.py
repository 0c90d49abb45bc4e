"""Rate limits: a client that waits may send again; a client with many addresses stops no other."""

from __future__ import annotations

import json

import pytest
from django.core.cache import cache

from chatmemory import protocol
from chatmemory.access.rates import (
    check_network,
    check_new_visitor,
    check_rate,
    check_reads,
    check_sessions,
    check_writes,
    count_tokens,
)
from chatmemory.errors import BadInput, RateLimited
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


@pytest.fixture
def clock(monkeypatch):
    """The time of the counters, which are empty before and after the test."""
    cache.clear()
    now = [29_000_000 * 60.0]
    monkeypatch.setattr("chatmemory.access.rates.time.time", lambda: now[0])
    yield now
    cache.clear()


def accepted(check, *arguments):
    try:
        check(*arguments)
    except RateLimited:
        return False
    return True


def networks(count, block="2001:db8:1"):
    return [f"{block}:{number:x}::/64" for number in range(count)]


@pytest.mark.regression
@pytest.mark.parametrize("embed", ["shop", ""])
def test_one_block_of_ipv6_networks_stops_no_visitor_of_another(clock, settings, embed):
    settings.CHATMEMORY = {"EMBED_VISITORS_PER_MINUTE": 20, "VISITORS_PER_MINUTE": 20}
    for minute in range(3):
        assert sum(accepted(check_new_visitor, each, embed) for each in networks(60)) <= 16
        check_new_visitor(f"203.0.113.{minute}", embed)
        check_new_visitor(f"2001:db8:{minute + 2}::/64", embed)
        clock[0] += 60


def test_a_block_has_ten_times_the_visitors_and_sends_of_a_network(clock, settings):
    settings.CHATMEMORY = {"VISITORS_PER_HOUR": 2, "VISITOR_SENDS_PER_MINUTE": 2}
    assert sum(accepted(check_new_visitor, each) for each in networks(30)) == 20
    guest = Actor.known_visitor("0" * 64)
    assert sum(accepted(check_network, guest, each) for each in networks(30)) == 20
    check_new_visitor("2001:db8:2::/64")
    check_network(guest, "2001:db8:2::/64")


def test_without_a_limit_for_networks_no_share_is_reserved(clock, settings):
    settings.CHATMEMORY = {"VISITORS_PER_HOUR": None, "VISITORS_PER_MINUTE": 8}
    assert sum(accepted(check_new_visitor, "203.0.113.1") for _ in range(10)) == 8


def limit_of_plan(by):
    """Allow two of everything to the first person, nothing to the second, all to others."""
    return {"1": 2, "2": 0}.get(by.id)


@pytest.mark.parametrize(
    ("setting", "check"),
    [
        ("SENDS_PER_MINUTE", check_rate),
        ("READS_PER_MINUTE", check_reads),
        ("WRITES_PER_MINUTE", check_writes),
    ],
)
def test_a_function_sets_the_limit_of_each_person(clock, settings, setting, check):
    settings.CHATMEMORY = {setting: f"{__name__}.limit_of_plan"}
    first, second, third = (Actor("user", pk, pk) for pk in "123")
    for _ in range(2):
        check(first)
    with pytest.raises(RateLimited, match="Only 2 "):
        check(first)
    with pytest.raises(RateLimited, match="Only 0 "):
        check(second)
    for _ in range(5):
        check(third)


def test_a_function_sets_the_tokens_of_each_person(clock, settings):
    settings.CHATMEMORY = {"TOKENS_PER_DAY": f"{__name__}.limit_of_plan"}
    count_tokens(scope="user:1", tokens=1)
    check_rate(Actor("user", "1", "a"))
    count_tokens(scope="user:1", tokens=1)
    with pytest.raises(RateLimited, match="The 2 tokens"):
        check_rate(Actor("user", "1", "a"))
    check_rate(Actor("user", "3", "c"))


@pytest.mark.django_db
def test_a_function_sets_the_sessions_of_each_person(settings):
    settings.CHATMEMORY = {"MAX_SESSIONS_PER_USER": f"{__name__}.limit_of_plan"}
    check_sessions(Actor("user", "1", "a"))
    with pytest.raises(BadInput, match="up to 0 sessions"):
        check_sessions(Actor("user", "2", "b"))
    check_sessions(Actor("user", "3", "c"))


@pytest.mark.django_db
def test_a_negative_limit_allows_nothing(clock, settings):
    names = ("SENDS_PER_MINUTE", "MAX_SESSIONS_PER_USER")
    settings.CHATMEMORY = dict.fromkeys(names, f"{__name__}.overdrawn")
    with pytest.raises(RateLimited, match="Only 0 "):
        check_rate(ANN)
    with pytest.raises(BadInput, match="up to 0 sessions"):
        check_sessions(ANN)


def overdrawn(by):
    return -3


def test_a_function_without_a_number_allows_nothing(settings):
    settings.CHATMEMORY = {"SENDS_PER_MINUTE": f"{__name__}.text_of"}
    with pytest.raises(TypeError, match="SENDS_PER_MINUTE must return an int or None"):
        check_rate(Actor("user", "1", "a"))


def text_of(by):
    return "many"
