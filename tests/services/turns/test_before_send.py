"""The function of BEFORE_SEND may refuse each message of a person before it is stored."""

from __future__ import annotations

import pytest

from chatmemory import services
from chatmemory.errors import MAX_REFUSAL_CHARS, BadInput, Refused
from chatmemory.models import Message, Session, Turn
from chatmemory.services import Actor
from tests import refusals_for_tests
from tests.factories import BY, make_user, make_visitor

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _forget():
    refusals_for_tests.CALLS.clear()


@pytest.fixture
def by():
    return Actor.user(make_user("ann"))


@pytest.fixture
def select(settings):
    def select(name):
        path = f"tests.refusals_for_tests.{name}"
        settings.CHATMEMORY = {**settings.CHATMEMORY, "BEFORE_SEND": path}

    return select


def send(by, client_id="c1", **more):
    fields = {"session_key": "talk", "by": by, "content": "hi", "create": True, **more}
    return services.admit_turn(client_id=client_id, **fields)


def test_the_function_gets_the_person_and_the_message(by, select):
    select("note")
    send(by)
    [(actor, sending)] = refusals_for_tests.CALLS
    assert actor == by
    assert (sending.session_key, sending.session, sending.text) == ("talk", None, "hi")
    assert (sending.content, sending.client_id, sending.replaces) == ("hi", "c1", None)
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    send(by, "c2", content=blocks)
    [_, (_, sending)] = refusals_for_tests.CALLS
    assert (sending.session, sending.content) == (Session.objects.get(), blocks)


@pytest.mark.parametrize("name", ["refuse", "arefuse"])
def test_a_refused_message_is_not_stored_and_opens_no_session(by, select, name):
    select(name)
    with pytest.raises(Refused, match="no messages left") as caught:
        send(by)
    assert caught.value.reason == "plan"
    assert not Session.objects.exists()


def test_a_message_that_would_wait_and_an_edit_are_asked_about_too(by, select):
    send(by, owner="a")
    select("refuse")
    with pytest.raises(Refused):
        send(by, "c2")
    services.stop_turn(session_key="talk", by=by, turn="c1")
    seq = Message.objects.get(role="user").seq
    with pytest.raises(Refused):
        send(by, "c3", replaces=seq, expect_seq=seq)
    assert [each.replaces for _, each in refusals_for_tests.CALLS] == [None, seq]
    assert Turn.objects.count() == 1


def test_a_message_that_is_stored_already_is_not_asked_about(by, select):
    send(by)
    select("refuse")
    assert send(by).is_duplicate
    assert not refusals_for_tests.CALLS


def test_an_invalid_message_is_not_asked_about(by, select):
    select("refuse")
    with pytest.raises(BadInput):
        send(by, content="")
    assert not refusals_for_tests.CALLS


def test_visitors_are_asked_about_and_server_code_is_not(by, select):
    select("refuse")
    with pytest.raises(Refused):
        send(make_visitor().actor)
    send(BY, scope=by.owner)
    assert len(refusals_for_tests.CALLS) == 1


def test_another_error_of_the_function_stores_nothing(by, select):
    select("fail")
    with pytest.raises(LookupError):
        send(by)
    assert not Session.objects.exists()


def test_a_long_sentence_is_truncated_and_a_wrong_reason_is_an_error():
    assert str(Refused("x" * 501)) == "x" * (MAX_REFUSAL_CHARS - 1) + "…"
    assert str(Refused("x" * MAX_REFUSAL_CHARS)) == "x" * MAX_REFUSAL_CHARS
    assert str(Refused()) == "This was refused."
    for reason in ("No plan", "1st", "x" * 41):
        with pytest.raises(ValueError, match="is not a reason"):
            Refused(reason=reason)
