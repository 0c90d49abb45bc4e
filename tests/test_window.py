"""The window: what of the history the model is given."""

from __future__ import annotations

import pytest
from django.test import override_settings

from chatmemory.codec import count_tokens
from chatmemory.models import Session
from chatmemory.services import SERVER, Actor, append_messages, trim_session
from chatmemory.window import CHUNK, LONGEST_TURN, read_window
from tests.factories import make_session, said

pytestmark = pytest.mark.django_db

TALK = {"session_key": "talk", "by": Actor.server("tests"), "scope": SERVER}
CALL = {"id": "call1", "name": "weather", "args": {}}
TOOL_TURN = [
    {"role": "user", "content": "Does it rain?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "yes", "tool_call_id": "call1"},
    {"role": "assistant", "content": "It does."},
]


def told(*messages, **columns):
    """The window of a session with these messages."""
    session = make_session(**columns)
    for start in range(0, len(messages), 500):
        append_messages(**TALK, messages=messages[start : start + 500], lenient=True)
    return read_window(session)


def limits(tokens=None, messages=None):
    return override_settings(CHATMEMORY={"WINDOW_TOKENS": tokens, "WINDOW_MESSAGES": messages})


def texts(window):
    return [message["content"] for message in window]


def test_a_short_history_is_given_whole_and_in_order():
    messages = said("a", "b", "c")
    assert told(*messages) == messages


def test_an_empty_history_is_an_empty_window():
    assert told() == []


def test_the_newest_messages_within_the_tokens_are_given():
    messages = said("a" * 100, "b" * 100, "c" * 100, "d" * 100, "e" * 100)
    cost = count_tokens(messages[0])
    with limits(tokens=3 * cost):
        assert texts(told(*messages)) == ["c" * 100, "d" * 100, "e" * 100]


def test_the_newest_messages_within_the_number_are_given():
    with limits(messages=3):
        assert texts(told(*said("a", "b", "c", "d", "e"))) == ["c", "d", "e"]


@pytest.mark.parametrize("most", [2, 3, 4])
def test_the_window_begins_where_a_users_message_does(most):
    with limits(messages=most):
        assert texts(told(*said("a", "b", "c", "d"), *TOOL_TURN[:1]))[0] in ("c", "Does it rain?")


@pytest.mark.parametrize("most", range(1, 5))
def test_a_tool_call_is_never_torn_from_its_result(most):
    with limits(messages=most):
        window = told(*said("a", "b"), *TOOL_TURN)
    assert window == TOOL_TURN


def test_a_last_turn_that_alone_is_over_the_limits_is_given_whole():
    with limits(tokens=1, messages=1):
        assert told(*said("a", "b"), *TOOL_TURN) == TOOL_TURN


def test_a_history_without_a_users_message_is_not_read_to_its_end():
    notes = [{"role": "assistant", "content": "note"}] * (LONGEST_TURN + CHUNK)
    with limits(messages=1):
        assert len(told(*notes)) == LONGEST_TURN


def test_a_result_of_no_known_call_is_left_out():
    orphan = {"role": "tool", "content": "yes", "tool_call_id": "unknown"}
    assert told(*said("a"), orphan, *TOOL_TURN) == [*said("a"), *TOOL_TURN]


def test_no_limits_are_the_whole_history():
    messages = said(*map(str, range(CHUNK * 2 + 1)))
    with limits():
        assert told(*messages) == messages


def test_what_was_trimmed_is_not_given():
    told(*said("a", "b", "c", "d"))
    trim_session(**TALK, keep_last=2, reason="test")
    session = Session.objects.get(key="talk")
    assert texts(read_window(session)) == ["c", "d"]


def test_the_instructions_come_first_and_outside_the_limits():
    with limits(messages=1):
        window = told(*said("a", "b", "c"), instructions="Be brief.")
    assert window == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "c"}]


def test_empty_replies_are_left_out():
    assert texts(told(*said("a", "", "b"))) == ["a", "b"]


def test_a_reply_that_only_calls_a_tool_is_not_empty():
    assert told(*TOOL_TURN)[1]["tool_calls"] == [CALL]


HIDDEN = "a\u202eb\U000e0041c\u2066d"


@pytest.mark.parametrize(
    "content", [HIDDEN, [{"type": "text", "text": HIDDEN}], [HIDDEN]], ids=["text", "block", "str"]
)
def test_characters_that_hide_instructions_do_not_reach_the_model(content):
    [message] = told({"role": "user", "content": content})
    shown = message["content"]
    while not isinstance(shown, str):
        shown = shown["text"] if isinstance(shown, dict) else shown[0]
    assert shown == "abcd"


def test_they_do_not_reach_it_out_of_a_tool_either():
    window = told(*TOOL_TURN[:2], {**TOOL_TURN[2], "content": HIDDEN})
    assert window[2]["content"] == "abcd"


def test_what_the_model_itself_said_is_given_back_unchanged():
    assert texts(told(*said("a", HIDDEN))) == ["a", HIDDEN]


def test_other_scripts_and_emoji_reach_the_model():
    text = "שלום 👩\u200d👧 \u0631\u200f e\u0301"
    assert texts(told(*said(text))) == [text]


def test_a_row_that_can_not_be_read_hides_no_other():
    told(*said("a", "b", "c"))
    session = Session.objects.get(key="talk")
    session.messages.filter(seq=2).update(body="{broken")
    assert texts(read_window(session)) == ["a", "b", "c"]


@pytest.mark.parametrize("length", [3, 150, 1_500])
def test_a_window_costs_one_query_however_long_the_history(length, django_assert_num_queries):
    told(*said(*map(str, range(length))))
    session = Session.objects.get(key="talk")
    with django_assert_num_queries(1), limits(tokens=200):
        read_window(session)
