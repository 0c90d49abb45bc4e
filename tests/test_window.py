"""The window: which messages of the history the model receives."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.conf import settings as django_settings
from django.db import connection, transaction
from django.db.models import F
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from chatmemory import window as window_module
from chatmemory.codec import UNKNOWN_OUTCOME, count_tokens, dump_json, encode
from chatmemory.logs import forget_logged
from chatmemory.models import Message, Session, Turn, superseded
from chatmemory.services import SERVER, admit_turn, append_messages, trim_session
from chatmemory.services.turns.progress import add_rows, finish_turn, start_turn
from chatmemory.window import MAX_FIRST_ROWS, REDACTED, read_window
from tests.factories import TALK, make_messages, make_session

pytestmark = [pytest.mark.django_db, pytest.mark.database]

CALL = {"id": "call1", "name": "weather", "args": {}}
TOOL_TURN = [
    {"role": "user", "content": "Does it rain?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "yes", "tool_call_id": "call1"},
    {"role": "assistant", "content": "It does."},
]


def store(*messages):
    """Store these messages in the session `talk`."""
    for start in range(0, len(messages), 1_000):
        append_messages(**TALK, messages=messages[start : start + 1_000], create=True, lenient=True)


def read():
    return read_window(Session.objects.get(key="talk"))


def window_of(*messages, **columns):
    """Return the messages that the model receives of a session with these messages."""
    make_session(**columns)
    store(*messages)
    return read().messages


def limits(tokens=None, messages=None):
    return override_settings(CHATMEMORY={"WINDOW_TOKENS": tokens, "WINDOW_MESSAGES": messages})


def texts(messages):
    return [message["content"] for message in messages]


def change(seq, **columns):
    Message.objects.filter(seq=seq).update(**columns)


def test_the_window_of_a_short_history_has_all_messages_in_order():
    messages = make_messages("a", "b", "c")
    assert window_of(*messages) == messages


def test_an_empty_history_is_an_empty_window():
    assert window_of() == []


def test_the_window_has_the_newest_messages_within_the_tokens():
    messages = make_messages("a" * 100, "b" * 100, "c" * 100, "d" * 100, "e" * 100)
    cost = count_tokens(messages[0])
    with limits(tokens=3 * cost):
        assert texts(window_of(*messages)) == ["c" * 100, "d" * 100, "e" * 100]
        assert (read().tokens, read().is_over) == (3 * cost, False)


def test_the_window_has_the_newest_messages_within_the_number():
    with limits(messages=3):
        assert texts(window_of(*make_messages("a", "b", "c", "d", "e"))) == ["c", "d", "e"]


@pytest.mark.parametrize("tokens", [10, 10_000])
@pytest.mark.parametrize("messages", [2, 1_000])
def test_of_two_limits_the_lower_one_applies(tokens, messages):
    with limits(tokens, messages):
        shown = window_of(*make_messages(*"abcdefgh"))
    by_tokens = 2 if tokens == 10 else 8  # each counts 4
    assert len(shown) == min(by_tokens, messages)


def test_without_limits_the_window_is_the_whole_history():
    messages = make_messages(*map(str, range(MAX_FIRST_ROWS * 6 + 1)))
    with limits():
        assert window_of(*messages) == messages


def test_tokens_are_those_counted_when_the_message_was_stored():
    window_of(*make_messages("a", "b", "c", "d"))
    change(3, tokens=50)
    with limits(tokens=40):
        assert texts(read().messages) == ["c", "d"]
    with limits(tokens=60, messages=10):
        assert read().tokens == 54


def test_a_failing_counter_loses_no_message():
    make_session()
    with override_settings(CHATMEMORY={"TOKEN_COUNTER": "nowhere.count"}):
        store(*make_messages("a", "b"))
        run("run", {"role": "assistant", "content": "c"})
    assert texts(read().messages) == ["a", "b", "hi", "c", "done"]


@pytest.mark.parametrize("mean", [1, 10**6])
def test_the_window_does_not_depend_on_the_number_of_rows_of_a_read(mean):
    messages = make_messages(*map(str, range(MAX_FIRST_ROWS + 100)))
    window_of(*messages)
    Session.objects.update(tokens=F("last_seq") * mean)
    with limits(tokens=4 * 151):
        assert read().messages == messages[-150:]


def test_trimmed_messages_are_excluded():
    window_of(*make_messages("a", "b", "c", "d"))
    trim_session(**TALK, keep_last=2, reason="test")
    assert texts(read().messages) == ["c", "d"]


def test_the_instructions_are_first_and_do_not_count():
    with limits(messages=1):
        window = window_of(*make_messages("a", "b", "c"), instructions="Be brief.")
    assert window == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "c"}]


@pytest.mark.parametrize("limit", [2, 3, 4])
def test_the_window_begins_with_a_message_of_the_user(limit):
    with limits(messages=limit):
        assert texts(window_of(*make_messages("a", "b", "c", "d"), *TOOL_TURN[:1]))[0] in (
            "c",
            "Does it rain?",
        )


@pytest.mark.parametrize("limit", range(1, 6))
def test_a_tool_call_is_never_separated_from_its_result(limit):
    with limits(messages=limit):
        window = window_of(*make_messages("a", "b"), *TOOL_TURN)
    assert window == TOOL_TURN


@pytest.mark.parametrize("limit", [{"tokens": 1}, {"messages": 1}])
def test_a_last_turn_above_the_limits_is_included_whole_and_logged_once(limit, caplog):
    forget_logged()
    make_session()
    store(*make_messages("a", "b"), *TOOL_TURN)
    with limits(**limit):
        window, again = read(), read()
    assert window == again
    assert window.messages == TOOL_TURN
    assert window.is_over
    assert window.tokens == sum(map(count_tokens, TOOL_TURN))
    [record] = [r for r in caplog.records if r.name == "chatmemory.window"]
    assert record.levelno == logging.WARNING
    assert str(Session.objects.get().pk) in record.getMessage()
    assert "rain" not in caplog.text


def test_a_very_long_last_turn_is_included_whole():
    turn = [
        *make_messages("go"),
        *[{"role": "assistant", "content": "step"}] * (MAX_FIRST_ROWS * 7),
    ]
    with limits(messages=1):
        assert window_of(*make_messages("a", "b"), *turn) == turn
        assert read().is_over


def test_a_window_within_its_limits_is_not_over_them(caplog):
    window_of(*make_messages("a", "b"))
    assert not read().is_over
    assert not caplog.records


def test_a_user_message_that_a_run_stores_begins_no_turn():
    make_session()
    store(*make_messages("a", "b"))
    run("run", {"role": "user", "content": "by the run"}, {"role": "assistant", "content": "c"})
    with limits(messages=3):
        assert texts(read().messages) == ["hi", "by the run", "c", "done"]


def test_without_a_message_of_a_user_the_window_has_the_newest_messages(
    django_assert_max_num_queries,
):
    window_of(*[{"role": "assistant", "content": "note"}] * 1_000)
    with limits(messages=3), django_assert_max_num_queries(3):
        assert len(read().messages) == 3
    with limits(tokens=1):
        assert len(read().messages) == 1


def test_before_the_first_turn_only_system_messages_are_included():
    system = {"role": "system", "content": "Rules."}
    greeting = {"role": "assistant", "content": "Hello, I am a bot."}
    assert window_of(system, greeting, *make_messages("a")) == [system, *make_messages("a")]
    with limits(messages=1):
        assert read().messages == make_messages("a")


def test_empty_replies_are_excluded():
    blocks = {"role": "assistant", "content": [{"type": "text", "text": " "}]}
    assert texts(window_of(*make_messages("a", "", "b", " \n"), blocks, *make_messages("c"))) == [
        "a",
        "b",
        "c",
    ]


def test_excluded_rows_do_not_count():
    with limits(messages=2):
        assert texts(window_of(*make_messages("a", "b", "c", ""), *make_messages("d", ""))) == [
            "c",
            "d",
        ]


def test_a_reply_that_only_calls_a_tool_is_not_empty():
    assert window_of(*TOOL_TURN)[1]["tool_calls"] == [CALL]


@pytest.mark.parametrize("columns", [{"quarantined": True}, {"body": "{broken"}, {"role": "root"}])
def test_a_quarantined_row_is_excluded_and_hides_no_other(columns):
    window_of(*make_messages("a", "b", "c"))
    change(2, **columns)
    assert texts(read().messages) == ["a", "c"]


def test_the_result_of_a_quarantined_call_is_excluded():
    window_of(*TOOL_TURN)
    change(2, quarantined=True)
    assert read().messages == [TOOL_TURN[0], TOOL_TURN[3]]


def unknown(call_id="call1"):
    return {
        "role": "tool",
        "content": UNKNOWN_OUTCOME,
        "tool_call_id": call_id,
        "tool_status": "error",
    }


def test_a_quarantined_result_is_replaced_by_an_unknown_outcome():
    window_of(*TOOL_TURN)
    change(3, quarantined=True)
    assert read().messages == [*TOOL_TURN[:2], unknown(), TOOL_TURN[3]]


def calls(*ids, content=""):
    tool_calls = [{"id": call_id, "name": "f", "args": {}} for call_id in ids]
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def result(call_id, content="yes"):
    return {"role": "tool", "content": content, "tool_call_id": call_id}


ASKED = {"role": "user", "content": "?"}
AGAIN = {"role": "user", "content": "And now?"}
NOTE = {"role": "assistant", "content": "hm"}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ([calls("a")], [calls("a"), unknown("a")]),
        ([calls("a"), NOTE], [calls("a"), unknown("a"), NOTE]),
        ([calls("a", "b"), result("b")], [calls("a", "b"), unknown("a"), result("b")]),
        (
            [calls("a", "b"), result("b"), result("a")],
            [calls("a", "b"), result("a"), result("b")],
        ),
        ([calls("a"), NOTE, result("a")], [calls("a"), result("a"), NOTE]),
        ([calls("a"), result("a"), result("a", "no")], [calls("a"), result("a")]),
        (
            [calls("a"), result("a"), calls("a"), result("a", "no")],
            [calls("a"), result("a"), calls("a"), result("a", "no")],
        ),
        ([calls("a"), AGAIN, result("a")], [calls("a"), unknown("a"), AGAIN]),
        (
            [calls("a"), AGAIN, calls("a"), result("a")],
            [calls("a"), unknown("a"), AGAIN, calls("a"), result("a")],
        ),
        ([result("a"), calls("a")], [calls("a"), unknown("a")]),
        ([result("a"), NOTE], [NOTE]),
        ([result(["a"]), NOTE], [NOTE]),
        ([{"role": "tool", "content": "yes"}, NOTE], [NOTE]),
        ([calls(None, "", "a", "a"), result("a")], [calls("a"), result("a")]),
        ([calls(None), NOTE], [NOTE]),
        ([calls(None, content="x")], [calls(content="x")]),
    ],
)
def test_exactly_one_result_follows_each_call(stored, shown):
    assert window_of(ASKED, *stored) == [ASKED, *shown]


def test_a_call_with_invalid_arguments_needs_a_result_too():
    # langchain-openai sends both lists, and the provider requires a result for each call.
    reply = {**calls("a"), "invalid_tool_calls": [{"id": "b", "name": "f", "args": "{"}]}
    assert window_of(ASKED, reply, result("a")) == [ASKED, reply, result("a"), unknown("b")]


def use(call_id, name="f", **more):
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}, **more}


def of_blocks(*blocks, calls=(), **more):
    return {"role": "assistant", "content": [*blocks], "tool_calls": [*calls], **more}


def called(call_id):
    return {"id": call_id, "name": "f", "args": {}}


HELLO = {"type": "text", "text": "Hello."}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
ADDED = {"name": "f", "args": {}, "id": "a", "type": "tool_call"}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}


@pytest.mark.regression
@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        # Each id once, in the blocks as in `tool_calls`.
        (
            of_blocks(use("a"), use("a", "g"), calls=[called("a"), called("a")]),
            of_blocks(use("a"), calls=[called("a")]),
        ),
        # No call without an id.
        (
            of_blocks(HELLO, use(None), use(""), use(["a"]), calls=[called(None)]),
            of_blocks(HELLO),
        ),
        # A call in the blocks alone.
        (of_blocks(HELLO, use("a")), of_blocks(HELLO, use("a"), calls=[ADDED])),
        (
            of_blocks({"type": "tool_call", "id": "a", "name": "f", "args": {}}),
            of_blocks({"type": "tool_call", "id": "a", "name": "f", "args": {}}, calls=[ADDED]),
        ),
        (of_blocks(HELLO, use("a", input="{")), of_blocks(HELLO)),
        # Blocks of OpenAI.
        (
            of_blocks(
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
                calls=[called("a")],
            ),
            of_blocks(
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                calls=[called("a")],
            ),
        ),
        # The raw calls of OpenAI.
        (
            of_blocks(HELLO, additional_kwargs={"tool_calls": [called(None)], "b": 1}),
            of_blocks(HELLO, additional_kwargs={"b": 1}),
        ),
        (
            of_blocks(
                calls=[called("a")],
                additional_kwargs={"tool_calls": [called("a"), called("a"), called("b"), 5]},
            ),
            of_blocks(calls=[called("a")], additional_kwargs={"tool_calls": [called("a")]}),
        ),
        # Calls of the provider's own tools.
        (of_blocks(HELLO, SEARCH), of_blocks(HELLO)),
        (of_blocks(FOUND, HELLO), of_blocks(HELLO)),
        (of_blocks(SEARCH, FOUND, HELLO), of_blocks(SEARCH, FOUND, HELLO)),
        # Reasoning at the end.
        (of_blocks(THOUGHT, use(None)), None),
        (of_blocks(HELLO, THOUGHT), of_blocks(HELLO)),
        (
            of_blocks(THOUGHT, use("a"), calls=[called("a")]),
            of_blocks(THOUGHT, use("a"), calls=[called("a")]),
        ),
    ],
)
def test_the_blocks_of_a_reply_are_repaired_with_its_calls(stored, shown):
    window = without_marks(window_of(ASKED, stored, AGAIN))
    results = [unknown(call["id"]) for call in (shown or {}).get("tool_calls", ())]
    assert window == [ASKED, *([shown] if shown else []), *results, AGAIN]


def without_marks(messages):
    """Remove the lists of blocks whose type is not a standard one."""
    return [{k: v for k, v in each.items() if k != "unknown_blocks"} for each in messages]


def answer(call_id, **more):
    return {"type": "tool_result", "tool_use_id": call_id, **more}


@pytest.mark.regression
def test_results_in_the_blocks_of_a_user_follow_their_calls():
    reply = of_blocks(use("a"), use("b"))
    failed = answer("b", content=[HELLO], is_error=True)
    shown = window_of(
        ASKED,
        reply,
        {"role": "user", "content": [failed, answer("x"), answer("a", content="yes")]},
        NOTE,
        {"role": "user", "content": [answer("a"), HELLO]},
    )
    assert without_marks(shown[2:]) == [
        result("a"),
        {**result("b", [HELLO]), "tool_status": "error"},
        NOTE,
        {"role": "user", "content": [HELLO]},
    ]
    with limits(messages=2):
        assert read().messages == shown[-1:]
    with limits(messages=4):  # the results begin no turn
        assert read().messages == shown[-1:]


def test_a_legacy_function_message_keeps_its_position():
    legacy = {"role": "tool", "content": "yes", "kind": "function", "name": "f"}
    assert window_of(ASKED, legacy, NOTE) == [ASKED, legacy, NOTE]


def test_tool_calls_in_a_users_message_are_ignored():
    message = {**ASKED, "tool_calls": [CALL]}
    assert window_of(message, NOTE) == [message, NOTE]


@pytest.mark.parametrize("seq", [1, 4])
def test_redacted_content_is_a_placeholder(seq):
    window_of(*TOOL_TURN)
    change(seq, text="", body=None, redacted=True)
    shown = read().messages
    assert shown[seq - 1] == {"role": TOOL_TURN[seq - 1]["role"], "content": REDACTED}
    assert shown[: seq - 1] + shown[seq:] == TOOL_TURN[: seq - 1] + TOOL_TURN[seq:]


@pytest.mark.parametrize("seq", [2, 3])
def test_redacted_calls_and_results_keep_their_ids(seq):
    window_of(*TOOL_TURN)
    skeleton = {**TOOL_TURN[seq - 1], "content": ""}
    change(seq, text="", body=dump_json(skeleton), redacted=True)
    assert read().messages[seq - 1] == {**skeleton, "content": REDACTED}
    assert len(read().messages) == len(TOOL_TURN)


def newest_user_seq(key="talk"):
    """Return the seq of the newest user row."""
    rows = Message.objects.filter(session__key=key, role="user")
    return rows.order_by("-seq").values_list("seq", flat=True).first()


def run(client_id, *messages, replaces=None, key="talk", content="hi"):
    """Run a turn that stores these rows and replaces the rows from a seq on."""
    expected = (
        {} if replaces is None else {"replaces": replaces, "expect_seq": newest_user_seq(key)}
    )
    claim = admit_turn(
        **{**TALK, "session_key": key},
        client_id=client_id,
        content=content,
        owner="me",
        **expected,
    ).claim
    start_turn(claim=claim)
    add_rows(claim=claim, messages=messages, step=None)
    finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": "done"})


def test_superseded_rows_are_excluded_and_do_not_count():
    make_session()
    store(*make_messages("a", "b", "c", "d"))
    run("one", replaces=3)
    with limits(messages=4):
        assert texts(read().messages) == ["a", "b", "hi", "done"]


def test_a_superseded_turn_still_supersedes_others():
    make_session()
    store(*make_messages("a", "b"))
    run("one", replaces=1)
    run("two", replaces=3, content="ho")
    assert texts(read().messages) == ["ho", "done"]


def test_the_window_has_the_newest_of_nested_edits():
    make_session()
    for number in (1, 3, 5):
        run(f"t{number}", content=f"question {number}")
    run("edit-of-third", replaces=5, content="third, edited")
    assert texts(read().messages)[::2] == ["question 1", "question 3", "third, edited"]
    run("edit-of-second", replaces=3, content="second, edited")
    assert texts(read().messages)[::2] == ["question 1", "second, edited"]
    run("next", content="and then?")
    run("edit-of-edit", replaces=9, content="second, edited again")
    assert texts(read().messages)[::2] == ["question 1", "second, edited again"]
    run("edit-of-first", replaces=1, content="first, edited")
    assert texts(read().messages) == ["first, edited", "done"]


def test_a_waiting_turn_supersedes_nothing():
    make_session()
    store(*make_messages("a", "b"))
    admit_turn(**TALK, client_id="one", content="hi", replaces=1, expect_seq=1)
    Session.objects.update(superseded_to=2)
    assert texts(read().messages) == ["a", "b"]
    assert superseded(1, session=Session.objects.get()) == []


def test_a_superseded_range_can_continue_in_the_next_read(monkeypatch):
    monkeypatch.setattr(window_module, "MAX_FIRST_ROWS", 3)
    make_session()
    store(*make_messages(*map(str, range(40))))
    run("one", replaces=3)
    assert texts(read().messages) == ["0", "1", "hi", "done"]


def test_turns_of_other_sessions_supersede_nothing():
    make_session()
    make_session("other")
    for key in ("talk", "other"):
        append_messages(**{**TALK, "session_key": key}, messages=make_messages("a", "b"))
        run("same", replaces=1 if key == "other" else None, key=key)
    Session.objects.update(superseded_to=2)
    assert texts(read().messages) == ["a", "b", "hi", "done"]


SYSTEM = {"role": "system", "content": "Reply in German."}
BLOCK = {"type": "text", "text": "c"}


@pytest.mark.regression
def test_neighbors_of_one_role_are_joined_if_the_setting_requires_it(settings):
    stored = [
        *make_messages("a"),  # the turn failed
        *make_messages("b"),
        {"role": "user", "content": [BLOCK]},
        {"role": "assistant", "content": "Wait."},
        calls("1", "2", content="I ask."),
        result("1"),
        result("2"),
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "x"},
        SYSTEM,
        SYSTEM,
    ]
    shown = window_of(*stored)
    assert len(shown) == 10
    settings.CHATMEMORY = {"WINDOW_JOIN": True}
    both = {"type": "text", "text": "a\n\nb"}
    assert read().messages == [
        {"role": "user", "content": [both, BLOCK]},
        calls("1", "2", content="Wait.\n\nI ask."),
        result("1"),
        result("2"),
        {"role": "assistant", "content": "x"},
        {"role": "system", "content": "Reply in German.\n\nReply in German."},
    ]
    assert read().tokens == sum(map(count_tokens, shown))


@pytest.mark.regression
def test_system_messages_are_at_the_start_if_the_setting_requires_it(settings):
    stored = [*make_messages("a", "b"), SYSTEM, *make_messages("c"), SYSTEM]
    instructions = {"role": "system", "content": "Be brief."}
    assert window_of(*stored, instructions="Be brief.") == [instructions, *stored]
    settings.CHATMEMORY = {"WINDOW_SYSTEM_FIRST": True}
    assert read().messages == [instructions, SYSTEM, SYSTEM, *make_messages("a", "b", "c")]
    settings.CHATMEMORY = {"WINDOW_SYSTEM_FIRST": True, "WINDOW_JOIN": True}
    assert [message["role"] for message in read().messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


HIDDEN = "a\u202eb\U000e0041c\u2066d"


@pytest.mark.parametrize(
    "content", [HIDDEN, [{"type": "text", "text": HIDDEN}], [HIDDEN]], ids=["text", "block", "str"]
)
def test_characters_that_hide_instructions_are_removed_from_messages_of_users(content):
    [message] = window_of({"role": "user", "content": content})
    shown = message["content"]
    while not isinstance(shown, str):
        shown = shown["text"] if isinstance(shown, dict) else shown[0]
    assert shown == "abcd"


def test_characters_that_hide_instructions_are_removed_from_results_of_tools():
    window = window_of(*TOOL_TURN[:2], {**TOOL_TURN[2], "content": HIDDEN})
    assert window[2]["content"] == "abcd"


def test_replies_of_the_model_are_unchanged():
    assert texts(window_of(*make_messages("a", HIDDEN))) == ["a", HIDDEN]


def test_other_scripts_and_emoji_are_unchanged():
    text = "שלום 👩\u200d👧 \u0631\u200f e\u0301"
    assert texts(window_of(*make_messages(text))) == [text]


@pytest.mark.parametrize("length", [10, 3_000])
def test_a_window_is_one_statement_for_any_length_of_the_history(length, django_assert_num_queries):
    window_of(*make_messages(*["word " * 40, "reply " * 100] * (length // 2)))
    session = Session.objects.get(key="talk")
    with django_assert_num_queries(1), limits(tokens=4_000):
        shown = read_window(session).messages
    assert len(shown) == min(length, 38)


@pytest.mark.parametrize(("mean", "max_rows"), [(103, 50), (1, MAX_FIRST_ROWS)])
def test_the_number_of_rows_read_is_estimated_from_the_mean(mean, max_rows):
    window_of(*make_messages(*["word " * 40, "reply " * 100] * 1_000))
    Session.objects.update(tokens=F("last_seq") * mean)
    session = Session.objects.get()
    with limits(tokens=4_000), CaptureQueriesContext(connection) as queries:
        read_window(session)
    [query] = queries
    [limit] = re.findall(r"LIMIT (\d+)", query["sql"])
    assert 38 < int(limit) <= max_rows


def test_superseded_turns_cost_one_more_statement(django_assert_num_queries):
    make_session()
    store(*make_messages("a", "b"))
    run("one", replaces=1)
    run("two", replaces=3)
    session = Session.objects.get()
    with django_assert_num_queries(2):
        read_window(session)


def test_rows_superseded_before_the_window_cost_no_statement(django_assert_num_queries):
    make_session()
    run("one")
    run("two", replaces=1)
    store(*make_messages(*map(str, range(6))))
    session = Session.objects.get()
    with django_assert_num_queries(1), limits(messages=2):
        assert texts(read_window(session).messages) == ["4", "5"]


def test_a_turn_that_begins_during_the_read_supersedes_nothing_in_the_window():
    make_session()
    run("one")
    concurrent = []

    def begin_after_the_rows(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if "ORDER BY seq DESC" in sql and not concurrent:
            concurrent.append(sql)
            run("two", replaces=1)
        return result

    Session.objects.update(superseded_to=1)
    with connection.execute_wrapper(begin_after_the_rows):
        assert texts(read().messages) == ["hi", "done"]
    assert concurrent


def test_a_misleading_mean_costs_few_more_statements(django_assert_max_num_queries):
    window_of(*make_messages(*["a" * 20_000] * 10, *["b"] * 1_000))
    session = Session.objects.get()
    with limits(tokens=4_000), django_assert_max_num_queries(5):
        assert len(read_window(session).messages) == 1_000


CONTENT = st.sampled_from(["", " ", "text", [], [{"type": "text", "text": ""}], ["b"], HIDDEN])
IDS = st.sampled_from(["a", "b", "", None])
CALLS = st.lists(st.builds(lambda i: {"id": i, "name": "f", "args": {}}, IDS), max_size=2)
BLOCKS = st.lists(
    st.sampled_from([use("a"), use("b"), use(None), THOUGHT, HELLO, SEARCH, FOUND]), max_size=4
)
STATES = st.sampled_from(["", "", "", "", "redacted", "quarantined", "broken"])
ROW = st.tuples(
    st.one_of(
        st.builds(
            lambda content, calls, bad: {
                "role": "assistant",
                "content": content,
                "tool_calls": calls,
                "invalid_tool_calls": bad,
            },
            CONTENT | BLOCKS,
            CALLS,
            CALLS,
        ),
        st.builds(lambda content: {"role": "assistant", "content": content}, CONTENT),
        st.builds(result, IDS, CONTENT),
    ),
    STATES,
)
TURNS = st.lists(
    st.tuples(STATES, st.lists(ROW, max_size=5), st.integers(0, 3)),
    min_size=1,
    max_size=4,
)


def write(turns) -> Iterator[Session]:
    """Yield a session after each turn that is stored in it; a turn may supersede earlier ones."""
    session = Session.objects.create(scope=SERVER, key="random")
    begins: list[int] = []
    for state, others, back in turns:
        begin = session.last_seq + 1
        Message.objects.bulk_create(
            stored(session, begin + place, begin, row)
            for place, row in enumerate([({"role": "user", "content": "?"}, state), *others])
        )
        low = begins[-back] if 0 < back <= len(begins) else None
        Turn.objects.create(
            session=session,
            client_id=f"turn-{begin}",
            status="complete",
            epoch=session.epoch,
            user_seq=begin,
            replaces_from=low,
            replaces_to=low and begin - 1,
        )
        begins.append(begin)
        session.last_seq += 1 + len(others)
        session.superseded_to = begin - 1 if low else session.superseded_to
        session.save()
        yield session


def stored(session, seq, turn, row):
    message, state = row
    encoded = encode(message, lenient=True)
    text, body = ("", encoded.body) if state == "redacted" else (encoded.text, encoded.body)
    return Message(
        session=session,
        seq=seq,
        turn=turn,
        client_id=f"turn-{seq}" if seq == turn else None,
        role=encoded.role,
        text=text,
        body="{" if state == "broken" else body,
        tokens=encoded.tokens,
        status="complete",
        redacted=state == "redacted",
        quarantined=state == "quarantined",
    )


def has_user_message(messages):
    return any(message["role"] == "user" for message in messages)


def is_block(block, kind):
    return isinstance(block, dict) and block["type"] == kind


def assert_a_provider_accepts(messages):
    awaited: list[str] = []
    others = [message for message in messages if message["role"] != "system"]
    if has_user_message(messages):
        assert others[0]["role"] == "user"
    for message in others:
        if message["role"] == "tool":
            assert message["tool_call_id"] == awaited.pop(0)
            continue
        assert awaited == []
        both = [*message.get("tool_calls", ()), *message.get("invalid_tool_calls", ())]
        awaited = [call["id"] for call in both]
        assert len(set(awaited)) == len(awaited)
        assert all(awaited)
        used = [block["id"] for block in message["content"] if is_block(block, "tool_use")]
        assert set(used) <= set(awaited)
        assert len(set(used)) == len(used)
        assert awaited or not any(is_block(block, "thinking") for block in message["content"][-1:])
        assert awaited or message["content"] not in ("", " ", [], [{"type": "text", "text": ""}])
    assert awaited == []


@pytest.mark.slow
@hypothesis_settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS)
def test_the_window_of_any_history_is_stable_and_acceptable_for_a_provider(turns):
    before: list[dict[str, object]] = []
    with rolled_back():
        for (state, _, back), session in zip(turns, write(turns), strict=True):
            with limits():
                whole = read_window(session).messages
                assert dump_json(read_window(session).messages) == dump_json(whole)
            assert_a_provider_accepts(whole)
            if not back and state in ("", "redacted") and (not before or has_user_message(before)):
                assert whole[: len(before)] == before
            before = whole
            for limit in ({"messages": 3}, {"tokens": 20}):
                assert_is_end_of(whole, session, limit)


def assert_is_end_of(whole, session, limit):
    with limits(**limit):
        shown = read_window(session).messages
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(window_module, "MAX_FIRST_ROWS", 1)
            assert read_window(session).messages == shown
    assert_a_provider_accepts(shown)
    assert shown == whole[len(whole) - len(shown) :]
    assert shown or not has_user_message(whole)


@contextmanager
def rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_the_window_is_the_same_in_another_process(live_database_env):
    emoji = {"role": "user", "content": [{"type": "text", "text": "é 👩"}], "b": 1, "a": 1e22}
    window_of(*TOOL_TURN, emoji, calls("z", "y"), *make_messages("x"), instructions="Ü")
    code = (
        "import django, sys; django.setup();"
        "from chatmemory.codec import dump_json;"
        "from chatmemory.models import Session;"
        "from chatmemory.window import read_window;"
        "window = read_window(Session.objects.get()).messages;"
        "sys.stdout.buffer.write(dump_json(window).encode())"
    )
    other = subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", code],
        env=live_database_env,
        cwd=django_settings.BASE_DIR,
        capture_output=True,
        check=True,
        timeout=60,
    )
    here = dump_json(read().messages).encode()
    connection.close()
    assert other.stdout == here == dump_json(read().messages).encode()
