"""The function of NEW_SESSION completes or refuses a person's new session."""

from __future__ import annotations

import logging

import pytest
from django.core.exceptions import ImproperlyConfigured

from chatmemory import services
from chatmemory.errors import BadInput, Forbidden
from chatmemory.models import Session
from chatmemory.services import Actor, sessions
from tests import new_sessions_for_tests
from tests.factories import BY, TALK, make_messages, make_user, make_visitor
from tests.locking import concurrently

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _forget():
    new_sessions_for_tests.CALLS.clear()
    new_sessions_for_tests.RESULTS.clear()


@pytest.fixture
def by():
    return Actor.user(make_user("ann", email="ann@tea.example"))


@pytest.fixture
def select(settings):
    def select(name, result=None):
        path = f"tests.new_sessions_for_tests.{name}"
        settings.CHATMEMORY = {**settings.CHATMEMORY, "NEW_SESSION": path}
        new_sessions_for_tests.RESULTS.append(result)

    return select


def test_the_function_completes_a_persons_new_session_once(by, select):
    select("of_team")
    for _ in range(2):
        session = services.open_session(session_key="talk", by=by, title="Kettle")
    assert (session.title, session.instructions) == ("Kettle", "You serve tea.example.")
    assert (session.metadata, session.ttl_seconds) == ({"team": "tea.example"}, 60)
    assert [(by, {"session_key": "talk", "title": "Kettle"})] == new_sessions_for_tests.CALLS


def test_a_message_to_a_new_session_calls_it_too(by, select):
    select("of_team")
    services.append_messages(session_key="talk", messages=make_messages("hi"), by=by, create=True)
    assert Session.objects.get().metadata == {"team": "tea.example"}


def test_visitors_call_it_and_server_code_does_not(by, select):
    select("given", {"title": "From the host"})
    services.open_session(**TALK)
    assert not new_sessions_for_tests.CALLS
    services.open_session(session_key="talk", by=BY, scope=by.owner)
    assert not new_sessions_for_tests.CALLS
    guest = make_visitor()
    session = services.open_session(session_key="talk", by=guest.actor)
    assert session.title == "From the host"
    assert [(guest.actor, {"session_key": "talk", "title": ""})] == new_sessions_for_tests.CALLS


def test_none_changes_nothing(by, select):
    select("given")
    assert services.open_session(session_key="talk", by=by, title="Kettle").title == "Kettle"


def test_an_error_of_ours_refuses_with_the_sentence_of_the_host(by, select):
    select("refusing")
    with pytest.raises(Forbidden, match=r"Your plan has no chat\."):
        services.open_session(session_key="talk", by=by)
    assert not Session.objects.exists()


def test_another_error_of_the_function_stores_nothing(by, select):
    select("failing")
    with pytest.raises(LookupError):
        services.open_session(session_key="talk", by=by)
    assert not Session.objects.exists()


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (["x"], "a list instead of a dict or None"),
        ({"owner": 5}, "unknown keys: 'owner'"),
        ({"title": "x" * 201}, "bad_field in title"),
        ({"metadata": {"a": {"b": "\0"}}}, "in metadata"),
        ({"metadata": None}, "metadata must be a dict"),
        ({"ttl_seconds": 0}, "bad_number in ttl_seconds"),
    ],
)
def test_a_result_that_cannot_be_stored_is_named_in_the_log(by, select, caplog, result, problem):
    select("given", result)
    with caplog.at_level(logging.ERROR, "chatmemory"), pytest.raises(ImproperlyConfigured):
        services.open_session(session_key="talk", by=by)
    assert problem in caplog.text
    assert not Session.objects.exists()


def test_a_purge_in_between_opens_no_session_without_the_function(by, select, monkeypatch):
    services.open_session(session_key="talk", by=by)
    select("refusing")
    read = sessions._read_active

    def purge_behind(scope, key):
        found = read(scope, key)
        services.purge_session(session_key="talk", by=by, reason="")
        return found

    monkeypatch.setattr(sessions, "_read_active", purge_behind)
    services.open_session(session_key="talk", by=by)
    assert not Session.objects.active().exists()


def test_a_person_at_the_limit_of_sessions_does_not_call_it(by, select, settings):
    select("given")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MAX_SESSIONS_PER_USER": 0}
    with pytest.raises(BadInput, match="up to 0 sessions"):
        services.open_session(session_key="talk", by=by)
    assert not new_sessions_for_tests.CALLS


def test_two_simultaneous_calls_open_one_session(by, select):
    select("of_team")
    opened = concurrently(*[lambda: services.open_session(session_key="talk", by=by)] * 4)
    assert len({session.pk for session in opened}) == 1
    assert Session.objects.get().metadata == {"team": "tea.example"}
