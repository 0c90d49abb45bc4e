"""Visitors: made by the server, stored as digests, ended by time, and limited."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event

import pytest
from django.core.cache import cache
from django.db import connection
from django.db.models import F

from chatmemory import services
from chatmemory.access import rates, visitors
from chatmemory.access.logins import allowed_logins, current_logins, is_valid
from chatmemory.database.locks import lock_visitor, locked_transaction
from chatmemory.errors import BadInput, Forbidden, RateLimited, Unauthenticated
from chatmemory.models import DatabaseNow, Session, Ticket, Visitor
from chatmemory.services import Actor, Login
from tests.factories import make_messages, make_user, make_visitor
from tests.servers import DEADLINE

THIS_MODULE = "tests.access.test_visitors"

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def _allowed(settings):
    settings.CHATMEMORY = {"ALLOW_ANONYMOUS": True}
    cache.clear()
    yield
    cache.clear()


def test_a_visitor_is_created_and_recognized():
    new = services.create_visitor()
    login = services.authenticate_visitor(token=new.token)
    assert (login.actor, login.proof, login.key) == (new.actor, "", None)
    assert is_valid(login)


def test_the_database_contains_only_the_digest():
    new = services.create_visitor()
    [row] = Visitor.objects.values()
    assert row["digest"] == new.actor.id
    assert new.token not in str(row)
    with pytest.raises(Unauthenticated):
        services.authenticate_visitor(token=new.actor.id)


@pytest.mark.parametrize("token", ["", "a", "a" * 43, "\0" * 43, "\ud800" * 43, "a" * 10**6])
def test_a_value_that_the_server_did_not_make_identifies_no_one(token):
    make_visitor()
    with pytest.raises(Unauthenticated):
        services.authenticate_visitor(token=token)
    assert Visitor.objects.count() == 1


def test_two_visitors_have_different_secrets_of_256_bits():
    first, second = services.create_visitor(), services.create_visitor()
    assert first.token != second.token
    assert len(first.token) == len(second.token) == 43  # of six bits each


@pytest.mark.parametrize(
    "columns", [{"days": -0.001}, {"adopted_at": DatabaseNow()}], ids=["ended", "adopted"]
)
def test_an_ended_or_adopted_visitor_is_not_authenticated(columns):
    guest = make_visitor(**columns)
    login = Login(actor=guest.actor, proof="")
    with pytest.raises(Unauthenticated):
        services.authenticate_visitor(token=guest.token)
    with pytest.raises(Unauthenticated):
        services.open_session(session_key="talk", by=guest.actor)
    assert not is_valid(login)
    assert not current_logins({login})
    assert not Session.objects.exists()


def test_without_the_setting_no_visitor_is_created_or_recognized(settings):
    guest = make_visitor()
    settings.CHATMEMORY = {}
    with pytest.raises(Unauthenticated):
        services.create_visitor()
    with pytest.raises(Unauthenticated):
        services.authenticate_visitor(token=guest.token)
    assert not is_valid(Login(actor=guest.actor, proof=""))


def nobody(by):
    return by.kind != "visitor"


def test_reach_refuses_visitors_before_a_row_is_stored(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "REACH": f"{THIS_MODULE}.nobody"}
    with pytest.raises(Forbidden):
        services.create_visitor()
    assert not Visitor.objects.exists()


def days_left(guest):
    """Return the days to the end, rounded: SQLite's clock may show the same millisecond again."""
    left = F("ends_at") - DatabaseNow()
    visitor = Visitor.objects.filter(digest=guest.actor.id).annotate(left=left).get()
    return round(visitor.left / timedelta(days=1))


def move_back(guest, days):
    """Let the visitor be created this number of days earlier, and seen for the last time then."""
    moved = {"created_at": F("created_at") - timedelta(days=days)}
    Visitor.objects.filter(digest=guest.actor.id).update(**moved, seen_day="2020-01-01")


@pytest.mark.parametrize(("age", "left"), [(1, 30), (59, 30), (80, 10), (89, 1)])
def test_a_request_moves_the_end_but_not_beyond_the_absolute_end(age, left):
    guest = make_visitor(days=3)
    move_back(guest, age)
    services.authenticate_visitor(token=guest.token)
    assert days_left(guest) == left


def test_the_absolute_end_may_be_earlier(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_MAX_DAYS": 3}
    assert days_left(services.create_visitor()) == 3


def test_a_request_does_not_revive_a_visitor_who_ends_meanwhile(monkeypatch):
    guest = make_visitor(days=3)
    move_back(guest, 1)
    slide = visitors._slide

    def end_first(*args):
        Visitor.objects.update(ends_at=DatabaseNow())
        slide(*args)

    monkeypatch.setattr(visitors, "_slide", end_first)
    services.authenticate_visitor(token=guest.token)
    assert days_left(guest) == 0


def test_the_end_is_written_once_a_day(django_assert_num_queries):
    guest = make_visitor(days=3)
    move_back(guest, 1)
    services.authenticate_visitor(token=guest.token)
    with django_assert_num_queries(1):
        services.authenticate_visitor(token=guest.token)


def test_visitors_and_users_are_checked_together():
    """A digest is no primary key: a query of users by it would raise."""
    user = make_user()
    guest, ended = make_visitor(), make_visitor(days=-1)
    logins = {Login.of(user), *(Login(actor=each.actor, proof="") for each in (guest, ended))}
    assert {login.actor for login in current_logins(logins)} == {Actor.user(user), guest.actor}


def all_revoked(logins):
    assert all(login.actor.kind == "user" for login in logins)
    return []


def test_the_hosts_function_does_not_decide_about_visitors(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VALID_LOGINS": f"{THIS_MODULE}.all_revoked"}
    guest, user = Login(actor=make_visitor().actor, proof=""), Login.of(make_user())
    assert allowed_logins({guest, user}) == {guest}


def test_a_visitor_with_the_number_of_a_user_is_another_owner():
    user = make_user()
    stranger = Actor("visitor", str(user.pk), "visitor")
    assert not current_logins({Login(actor=stranger, proof=Login.of(user).proof)})


def test_a_ticket_of_a_visitor_is_used_once_and_ends_with_the_visitor():
    guest = make_visitor()
    ticket = services.issue_ticket(by=guest.actor)
    assert Ticket.objects.get().owner == guest.actor.owner
    login = services.use_ticket(ticket=ticket, network="203.0.113.7")
    assert (login.actor, login.network) == (guest.actor, "203.0.113.7")
    with pytest.raises(Unauthenticated):
        services.use_ticket(ticket=ticket)
    ticket = services.issue_ticket(by=guest.actor)
    Visitor.objects.update(ends_at=DatabaseNow())
    with pytest.raises(Unauthenticated):
        services.use_ticket(ticket=ticket)
    with pytest.raises(Unauthenticated):
        services.issue_ticket(by=guest.actor)


@pytest.mark.parametrize("by", [Actor.server("x"), Actor("operator", "1", "x")])
def test_only_persons_get_tickets(by):
    with pytest.raises(TypeError):
        services.issue_ticket(by=by)


@pytest.mark.parametrize(
    ("limits", "networks"),
    [
        ({"VISITORS_PER_HOUR": 2}, ("a", "a", "a")),
        ({"VISITORS_PER_HOUR": None, "VISITORS_PER_MINUTE": 2}, ("a", "b", "c")),
    ],
)
def test_new_visitors_are_limited(settings, limits, networks):
    settings.CHATMEMORY |= limits
    for network in networks[:2]:
        services.create_visitor(network=network)
    with pytest.raises(RateLimited) as refused:
        services.create_visitor(network=networks[2])
    assert 0 < refused.value.retry_after <= 3600
    assert Visitor.objects.count() == 2


def test_a_network_above_its_limit_does_not_use_up_that_of_all(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITORS_PER_HOUR": 1, "VISITORS_PER_MINUTE": 2}
    services.create_visitor(network="a")
    for _ in range(5):
        with pytest.raises(RateLimited):
            services.create_visitor(network="a")
    services.create_visitor(network="b")


def test_sends_are_limited_per_network(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_SENDS_PER_MINUTE": 2}
    first, second = make_visitor().actor, make_visitor().actor
    rates.check_network(first, "a")
    rates.check_network(second, "a")
    rates.check_network(second, "b")
    with pytest.raises(RateLimited):
        rates.check_network(first, "a")
    rates.check_network(Actor("user", "1", "ann"), "a")


def test_tokens_of_all_visitors_are_capped(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_TOKENS_PER_DAY": 10}
    first, second = make_visitor().actor, make_visitor().actor
    rates.count_tokens(scope=first.owner, tokens=10)
    with pytest.raises(RateLimited):
        rates.check_rate(second)
    rates.check_rate(Actor("user", "1", "ann"))


def test_a_visitor_has_a_hundred_sessions_and_purged_ones_count(monkeypatch):
    monkeypatch.setattr(rates, "MAX_VISITOR_SESSIONS", 2)
    guest = make_visitor().actor
    services.open_session(session_key="a", by=guest)
    services.purge_session(session_key="a", by=guest, reason="")
    services.open_session(session_key="b", by=guest)
    with pytest.raises(BadInput) as refused:
        services.open_session(session_key="c", by=guest)
    assert (refused.value.code, refused.value.limit) == ("too_many", 2)
    services.open_session(session_key="b", by=guest)


def test_a_visitor_reaches_only_own_sessions():
    first, second = make_visitor().actor, make_visitor().actor
    here = {"session_key": "talk", "by": first}
    services.append_messages(**here, messages=make_messages("hi"), create=True)
    services.open_session(session_key="talk", by=second)
    assert services.read_page(session_key="talk", by=second).rows == []
    [row] = services.read_page(**here).rows
    assert row.text == "hi"


@pytest.mark.django_db(transaction=True)
def test_a_racing_send_opens_no_session_of_a_visitor_who_ends_meanwhile():
    guest = make_visitor().actor
    is_writing = Event()

    def announce_writes(execute, sql, params, many, context):
        if "chatmemory_visitor" in sql or sql.startswith(("INSERT", "BEGIN")):
            is_writing.set()
        return execute(sql, params, many, context)

    def send():
        try:
            with connection.execute_wrapper(announce_writes):
                services.open_session(session_key="talk", by=guest)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        with locked_transaction():
            lock_visitor(guest.id)
            sent = thread.submit(send)
            assert is_writing.wait(DEADLINE)
            Visitor.objects.update(ends_at=DatabaseNow())
        with pytest.raises(Unauthenticated):
            sent.result(DEADLINE)
    assert not Session.objects.exists()
