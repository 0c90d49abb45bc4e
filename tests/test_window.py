"""The window: what of the history the model is given."""

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
from chatmemory.models import Message, Session, Turn
from chatmemory.services import (
    SERVER,
    add_rows,
    admit_turn,
    append_messages,
    finish_turn,
    start_turn,
    trim_session,
)
from chatmemory.window import MOST_AT_FIRST, REDACTED, read_window
from tests.factories import TALK, make_session, said

pytestmark = [pytest.mark.django_db, pytest.mark.database]

CALL = {"id": "call1", "name": "weather", "args": {}}
TOOL_TURN = [
    {"role": "user", "content": "Does it rain?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "yes", "tool_call_id": "call1"},
    {"role": "assistant", "content": "It does."},
]


def tell(*messages):
    """Store these messages in the session `talk`."""
    for start in range(0, len(messages), 1_000):
        append_messages(**TALK, messages=messages[start : start + 1_000], create=True, lenient=True)


def read():
    return read_window(Session.objects.get(key="talk"))


def told(*messages, **columns):
    """What the model is given of a session with these messages."""
    make_session(**columns)
    tell(*messages)
    return read().messages


def limits(tokens=None, messages=None):
    return override_settings(CHATMEMORY={"WINDOW_TOKENS": tokens, "WINDOW_MESSAGES": messages})


def texts(messages):
    return [message["content"] for message in messages]


def change(seq, **columns):
    Message.objects.filter(seq=seq).update(**columns)


# Within the limits


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
        assert (read().tokens, read().is_over) == (3 * cost, False)


def test_the_newest_messages_within_the_number_are_given():
    with limits(messages=3):
        assert texts(told(*said("a", "b", "c", "d", "e"))) == ["c", "d", "e"]


@pytest.mark.parametrize("tokens", [10, 10_000])
@pytest.mark.parametrize("messages", [2, 1_000])
def test_of_two_limits_the_narrower_holds(tokens, messages):
    with limits(tokens, messages):
        given = told(*said(*"abcdefgh"))
    by_tokens = 2 if tokens == 10 else 8  # each counts 4
    assert len(given) == min(by_tokens, messages)


def test_no_limits_are_the_whole_history():
    messages = said(*map(str, range(MOST_AT_FIRST * 6 + 1)))
    with limits():
        assert told(*messages) == messages


def test_tokens_are_those_counted_when_the_message_was_stored():
    told(*said("a", "b", "c", "d"))
    change(3, tokens=50)
    with limits(tokens=40):
        assert texts(read().messages) == ["c", "d"]
    with limits(tokens=60, messages=10):
        assert read().tokens == 54


def test_nothing_is_lost_for_its_count():
    make_session()
    with override_settings(CHATMEMORY={"TOKEN_COUNTER": "nowhere.count"}):
        tell(*said("a", "b"))
        run("run", {"role": "assistant", "content": "c"})
    assert texts(read().messages) == ["a", "b", "hi", "c", "done"]


@pytest.mark.parametrize("mean", [1, 10**6])
def test_it_does_not_matter_how_many_rows_are_read_at_a_time(mean):
    messages = said(*map(str, range(MOST_AT_FIRST + 100)))
    told(*messages)
    Session.objects.update(tokens=F("last_seq") * mean)
    with limits(tokens=4 * 151):
        assert read().messages == messages[-150:]


def test_what_was_trimmed_is_not_given():
    told(*said("a", "b", "c", "d"))
    trim_session(**TALK, keep_last=2, reason="test")
    assert texts(read().messages) == ["c", "d"]


def test_the_instructions_come_first_and_outside_the_limits():
    with limits(messages=1):
        window = told(*said("a", "b", "c"), instructions="Be brief.")
    assert window == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "c"}]


# Cut only where a turn begins


@pytest.mark.parametrize("most", [2, 3, 4])
def test_the_window_begins_where_a_users_message_does(most):
    with limits(messages=most):
        assert texts(told(*said("a", "b", "c", "d"), *TOOL_TURN[:1]))[0] in ("c", "Does it rain?")


@pytest.mark.parametrize("most", range(1, 6))
def test_a_tool_call_is_never_torn_from_its_result(most):
    with limits(messages=most):
        window = told(*said("a", "b"), *TOOL_TURN)
    assert window == TOOL_TURN


@pytest.mark.parametrize("limit", [{"tokens": 1}, {"messages": 1}])
def test_a_last_turn_that_alone_is_over_the_limits_is_given_whole_and_said_so(limit, caplog):
    window_module._warn_once.cache_clear()
    make_session()
    tell(*said("a", "b"), *TOOL_TURN)
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


def test_a_last_turn_is_given_whole_however_long_it_is():
    turn = [*said("go"), *[{"role": "assistant", "content": "step"}] * (MOST_AT_FIRST * 7)]
    with limits(messages=1):
        assert told(*said("a", "b"), *turn) == turn
        assert read().is_over


def test_a_window_within_its_limits_is_not_over_them(caplog):
    told(*said("a", "b"))
    assert not read().is_over
    assert not caplog.records


def test_what_a_run_stores_as_a_users_begins_no_turn():
    make_session()
    tell(*said("a", "b"))
    run("run", {"role": "user", "content": "by the run"}, {"role": "assistant", "content": "c"})
    with limits(messages=3):
        assert texts(read().messages) == ["hi", "by the run", "c", "done"]


def test_of_a_history_without_a_users_message_the_newest_are_given(django_assert_max_num_queries):
    told(*[{"role": "assistant", "content": "note"}] * 1_000)
    with limits(messages=3), django_assert_max_num_queries(3):
        assert len(read().messages) == 3
    with limits(tokens=1):
        assert len(read().messages) == 1


def test_what_was_said_before_the_first_user_spoke_is_left_out_but_for_the_systems():
    system = {"role": "system", "content": "Rules."}
    greeting = {"role": "assistant", "content": "Hello, I am a bot."}
    assert told(system, greeting, *said("a")) == [system, *said("a")]
    with limits(messages=1):
        assert read().messages == said("a")


# Left out


def test_empty_replies_are_left_out():
    blocks = {"role": "assistant", "content": [{"type": "text", "text": " "}]}
    assert texts(told(*said("a", "", "b", " \n"), blocks, *said("c"))) == ["a", "b", "c"]


def test_what_is_left_out_counts_for_nothing():
    with limits(messages=2):
        assert texts(told(*said("a", "b", "c", ""), *said("d", ""))) == ["c", "d"]


def test_a_reply_that_only_calls_a_tool_is_not_empty():
    assert told(*TOOL_TURN)[1]["tool_calls"] == [CALL]


@pytest.mark.parametrize("columns", [{"quarantined": True}, {"body": "{broken"}, {"role": "root"}])
def test_a_quarantined_row_is_left_out_and_hides_no_other(columns):
    told(*said("a", "b", "c"))
    change(2, **columns)
    assert texts(read().messages) == ["a", "c"]


def test_with_a_quarantined_call_its_result_is_left_out():
    told(*TOOL_TURN)
    change(2, quarantined=True)
    assert read().messages == [TOOL_TURN[0], TOOL_TURN[3]]


def unknown(call_id="call1"):
    return {
        "role": "tool",
        "content": UNKNOWN_OUTCOME,
        "tool_call_id": call_id,
        "tool_status": "error",
    }


def test_for_a_quarantined_result_the_outcome_is_unknown():
    told(*TOOL_TURN)
    change(3, quarantined=True)
    assert read().messages == [*TOOL_TURN[:2], unknown(), TOOL_TURN[3]]


# Repaired


def calls(*ids, content=""):
    made = [{"id": call_id, "name": "f", "args": {}} for call_id in ids]
    return {"role": "assistant", "content": content, "tool_calls": made}


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
def test_each_call_is_followed_by_its_one_result(stored, shown):
    assert told(ASKED, *stored) == [ASKED, *shown]


def test_a_call_with_invalid_arguments_needs_a_result_too():
    # langchain-openai sends both lists, and the provider asks for the result of each.
    reply = {**calls("a"), "invalid_tool_calls": [{"id": "b", "name": "f", "args": "{"}]}
    assert told(ASKED, reply, result("a")) == [ASKED, reply, result("a"), unknown("b")]


def test_a_function_message_of_old_is_given_where_it_stands():
    old = {"role": "tool", "content": "yes", "kind": "function", "name": "f"}
    assert told(ASKED, old, NOTE) == [ASKED, old, NOTE]


def test_what_looks_like_a_call_in_a_users_message_is_none():
    odd = {**ASKED, "tool_calls": [CALL]}
    assert told(odd, NOTE) == [odd, NOTE]


@pytest.mark.parametrize("seq", [1, 4])
def test_what_was_redacted_is_given_as_a_placeholder(seq):
    told(*TOOL_TURN)
    change(seq, text="", body=None, redacted=True)
    shown = read().messages
    assert shown[seq - 1] == {"role": TOOL_TURN[seq - 1]["role"], "content": REDACTED}
    assert shown[: seq - 1] + shown[seq:] == TOOL_TURN[: seq - 1] + TOOL_TURN[seq:]


@pytest.mark.parametrize("seq", [2, 3])
def test_redacted_calls_and_results_keep_what_holds_them_together(seq):
    told(*TOOL_TURN)
    skeleton = {**TOOL_TURN[seq - 1], "content": ""}
    change(seq, text="", body=dump_json(skeleton), redacted=True)
    assert read().messages[seq - 1] == {**skeleton, "content": REDACTED}
    assert len(read().messages) == len(TOOL_TURN)


# Superseded


def newest(key="talk"):
    """The newest row of a user."""
    rows = Message.objects.filter(session__key=key, role="user")
    return rows.order_by("-seq").values_list("seq", flat=True).first()


def run(client_id, *messages, replaces=None, key="talk", content="hi"):
    """A turn that ran and stored these rows, and replaces what was said from a row on."""
    expected = {} if replaces is None else {"replaces": replaces, "expect_seq": newest(key)}
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


def test_superseded_rows_are_left_out_and_count_for_nothing():
    make_session()
    tell(*said("a", "b", "c", "d"))
    run("one", replaces=3)
    with limits(messages=4):
        assert texts(read().messages) == ["a", "b", "hi", "done"]


def test_a_turn_that_was_superseded_itself_supersedes_still():
    make_session()
    tell(*said("a", "b"))
    run("one", replaces=1)
    run("two", replaces=3, content="ho")
    assert texts(read().messages) == ["ho", "done"]


def test_the_window_follows_the_newest_of_edits_within_edits():
    make_session()
    for number in (1, 3, 5):
        run(f"t{number}", content=f"said {number}")
    run("edit-of-third", replaces=5, content="third, once more")
    assert texts(read().messages)[::2] == ["said 1", "said 3", "third, once more"]
    run("edit-of-second", replaces=3, content="second, once more")
    assert texts(read().messages)[::2] == ["said 1", "second, once more"]
    run("goes-on", content="and then?")
    run("edit-of-edit", replaces=9, content="second, at last")
    assert texts(read().messages)[::2] == ["said 1", "second, at last"]
    run("edit-of-first", replaces=1, content="all anew")
    assert texts(read().messages) == ["all anew", "done"]


def test_a_turn_supersedes_nothing_before_it_has_begun():
    make_session()
    tell(*said("a", "b"))
    admit_turn(**TALK, client_id="one", content="hi", replaces=1, expect_seq=1)
    Session.objects.update(superseded_to=2)
    assert texts(read().messages) == ["a", "b"]
    assert Turn.objects.superseded() == []


def test_a_range_reaches_into_rows_that_are_read_later(monkeypatch):
    monkeypatch.setattr(window_module, "MOST_AT_FIRST", 3)
    make_session()
    tell(*said(*map(str, range(40))))
    run("one", replaces=3)
    assert texts(read().messages) == ["0", "1", "hi", "done"]


def test_the_turns_of_other_sessions_supersede_nothing_here():
    make_session()
    make_session("other")
    for key in ("talk", "other"):
        append_messages(**{**TALK, "session_key": key}, messages=said("a", "b"))
        run("same", replaces=1 if key == "other" else None, key=key)
    Session.objects.update(superseded_to=2)
    assert texts(read().messages) == ["a", "b", "hi", "done"]


# What hides


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


# What it costs


@pytest.mark.parametrize("length", [10, 3_000])
def test_a_window_costs_one_statement_however_long_the_history(length, django_assert_num_queries):
    told(*said(*["word " * 40, "reply " * 100] * (length // 2)))
    session = Session.objects.get(key="talk")
    with django_assert_num_queries(1), limits(tokens=4_000):
        given = read_window(session).messages
    assert len(given) == min(length, 38)


@pytest.mark.parametrize(("mean", "most"), [(103, 50), (1, MOST_AT_FIRST)])
def test_no_more_rows_are_read_than_are_likely_to_be_given(mean, most):
    told(*said(*["word " * 40, "reply " * 100] * 1_000))
    Session.objects.update(tokens=F("last_seq") * mean)
    session = Session.objects.get()
    with limits(tokens=4_000), CaptureQueriesContext(connection) as queries:
        read_window(session)
    [query] = queries
    [limit] = re.findall(r"LIMIT (\d+)", query["sql"])
    assert 38 < int(limit) <= most


def test_one_more_where_turns_were_superseded(django_assert_num_queries):
    make_session()
    tell(*said("a", "b"))
    run("one", replaces=1)
    run("two", replaces=3)
    session = Session.objects.get()
    with django_assert_num_queries(2):
        read_window(session)


def test_none_where_what_was_superseded_lies_before_what_is_read(django_assert_num_queries):
    make_session()
    run("one")
    run("two", replaces=1)
    tell(*said(*map(str, range(6))))
    session = Session.objects.get()
    with django_assert_num_queries(1), limits(messages=2):
        assert texts(read_window(session).messages) == ["4", "5"]


def test_a_turn_that_begins_while_the_window_is_read_supersedes_nothing_in_it():
    make_session()
    run("one")
    begun = []

    def begin_after_the_rows(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if "ORDER BY seq DESC" in sql and not begun:
            begun.append(sql)
            run("two", replaces=1)
        return result

    Session.objects.update(superseded_to=1)
    with connection.execute_wrapper(begin_after_the_rows):
        assert texts(read().messages) == ["hi", "done"]
    assert begun


def test_and_few_more_where_the_newest_are_unlike_the_mean(django_assert_max_num_queries):
    told(*said(*["a" * 20_000] * 10, *["b"] * 1_000))
    session = Session.objects.get()
    with limits(tokens=4_000), django_assert_max_num_queries(5):
        assert len(read_window(session).messages) == 1_000


# The same rows give the same list, and a provider accepts it

CONTENT = st.sampled_from(["", " ", "text", [], [{"type": "text", "text": ""}], ["b"], HIDDEN])
IDS = st.sampled_from(["a", "b", "", None])
CALLS = st.lists(st.builds(lambda i: {"id": i, "name": "f", "args": {}}, IDS), max_size=2)
ODD = st.sampled_from(["", "", "", "", "redacted", "quarantined", "broken"])
ROW = st.tuples(
    st.one_of(
        st.builds(
            lambda content, calls, bad: {
                "role": "assistant",
                "content": content,
                "tool_calls": calls,
                "invalid_tool_calls": bad,
            },
            CONTENT,
            CALLS,
            CALLS,
        ),
        st.builds(lambda content: {"role": "assistant", "content": content}, CONTENT),
        st.builds(result, IDS, CONTENT),
    ),
    ODD,
)
TURNS = st.lists(
    st.tuples(ODD, st.lists(ROW, max_size=5), st.integers(0, 3)),
    min_size=1,
    max_size=4,
)


def write(turns) -> Iterator[Session]:
    """Make a session and store turn after turn in it, each of which may supersede some before."""
    session = Session.objects.create(scope=SERVER, key="random")
    begins: list[int] = []
    for odd, others, back in turns:
        begin = session.last_seq + 1
        Message.objects.bulk_create(
            stored(session, begin + place, begin, row)
            for place, row in enumerate([({"role": "user", "content": "?"}, odd), *others])
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
    message, odd = row
    encoded = encode(message, lenient=True)
    text, body = ("", encoded.body) if odd == "redacted" else (encoded.text, encoded.body)
    return Message(
        session=session,
        seq=seq,
        turn=turn,
        client_id=f"turn-{seq}" if seq == turn else None,
        role=encoded.role,
        text=text,
        body="{" if odd == "broken" else body,
        tokens=encoded.tokens,
        status="complete",
        redacted=odd == "redacted",
        quarantined=odd == "quarantined",
    )


def user_speaks(messages):
    return any(message["role"] == "user" for message in messages)


def assert_a_provider_accepts(messages):
    awaited: list[str] = []
    spoken = [message for message in messages if message["role"] != "system"]
    if user_speaks(messages):
        assert spoken[0]["role"] == "user"
    for message in spoken:
        if message["role"] == "tool":
            assert message["tool_call_id"] == awaited.pop(0)
            continue
        assert awaited == []
        both = [*message.get("tool_calls", ()), *message.get("invalid_tool_calls", ())]
        awaited = [call["id"] for call in both]
        assert len(set(awaited)) == len(awaited)
        assert all(awaited)
        assert awaited or message["content"] not in ("", " ", [], [{"type": "text", "text": ""}])
    assert awaited == []


@pytest.mark.slow
@hypothesis_settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS)
def test_whatever_the_history_the_window_is_stable_and_fit_for_a_provider(turns):
    before: list[dict[str, object]] = []
    with rolled_back():
        for (odd, _, back), session in zip(turns, write(turns), strict=True):
            with limits():
                whole = read_window(session).messages
                assert dump_json(read_window(session).messages) == dump_json(whole)
            assert_a_provider_accepts(whole)
            if not back and odd in ("", "redacted") and (not before or user_speaks(before)):
                assert whole[: len(before)] == before
            before = whole
            for limit in ({"messages": 3}, {"tokens": 20}):
                assert_it_is_the_end_of(whole, session, limit)


def assert_it_is_the_end_of(whole, session, limit):
    with limits(**limit):
        given = read_window(session).messages
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(window_module, "MOST_AT_FIRST", 1)
            assert read_window(session).messages == given
    assert_a_provider_accepts(given)
    assert given == whole[len(whole) - len(given) :]
    assert given or not user_speaks(whole)


@contextmanager
def rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_another_process_gives_the_same_bytes(live_database_env):
    emoji = {"role": "user", "content": [{"type": "text", "text": "é 👩"}], "b": 1, "a": 1e22}
    told(*TOOL_TURN, emoji, calls("z", "y"), *said("x"), instructions="Ü")
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
