"""Find a text in everything that is stored, in bounded statements."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory import services
from chatmemory.errors import BadInput
from chatmemory.models import AuditAction, Feedback, Message, Session, Turn
from chatmemory.services import SERVER, FoundText, find_text
from chatmemory.services.audit.entries import record
from chatmemory.services.redaction import find_text as finding
from chatmemory.services.redaction.find_text import locate
from chatmemory.services.turns.progress import finish_turn, save_partial, start_turn
from tests.factories import BY, TALK, make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

KEY = 'sk-"Ä\\_%é'
"""With what JSON, LIKE and regular expressions escape, and letters beyond ASCII."""

CALL = {"id": "1", "name": "f"}


def store(*texts: str, **where: Any) -> None:
    services.append_messages(**{**TALK, **where}, messages=make_messages(*texts))


def found(text: str = KEY, **filters: Any) -> list[FoundText]:
    return list(find_text(sessions=Session.objects.filter(**filters), text=text))


def finds(text: str = KEY) -> list[tuple[str, str, str]]:
    return [(each.field, each.state, each.obstacle) for each in found(text)]


def run_turn(client_id: str, content: str) -> Any:
    claim = services.admit_turn(**TALK, client_id=client_id, content=content, owner="me").claim
    assert claim is not None
    start_turn(claim=claim)
    return claim


def test_messages_with_the_text_are_found_in_order_and_no_others():
    make_session()
    store(f"My key is {KEY}.", f"I use SK{KEY[2:]}", "ok", "sk-")
    assert [(each.seq, each.role) for each in found()] == [(1, "user"), (2, "assistant")]
    assert found("sk_") == []


@pytest.mark.regression
def test_a_short_text_is_not_found_in_the_data_of_an_image():
    make_session()
    data = "A" * 1_000 + "lena" + "longSecret/+="
    image = {"type": "image", "base64": data, "filename": "lena.png"}
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    for block in (image, url):
        messages = [{"role": "user", "content": [block]}]
        services.append_messages(**TALK, messages=messages)
    assert [each.seq for each in found("Lena")] == [1]  # the name of the file
    assert [each.seq for each in found("longSecret")] == [1, 2]
    store("A" * 1_000 + "name")
    assert [each.seq for each in found("name")] == [3]


def test_the_place_of_a_text_does_not_contain_it():
    make_session()
    store(f"My key is {KEY}.")
    (one,) = found()
    assert KEY not in str(one)
    assert (one.session_key, one.scope, one.session_pk) == (
        "talk",
        SERVER,
        Session.objects.get().pk,
    )


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "", "tool_calls": [{**CALL, "args": {"a": KEY}}]},
        {"role": "assistant", "content": "", "tool_calls": [{**CALL, "args": {KEY: 1}}]},
        {"role": "assistant", "content": [{"type": "image", "url": KEY}]},
        {"role": "tool", "content": "", "tool_call_id": "1", "artifact": [{"x": KEY}]},
        {"role": "user", "content": "hi", "name": KEY},
    ],
)
def test_data_of_a_message_is_searched_too(message):
    make_session()
    services.append_messages(**TALK, messages=[message])
    assert [each.seq for each in found()] == [1]


def test_the_syntax_of_stored_messages_is_not_content():
    make_session()
    services.append_messages(**TALK, messages=[{"role": "user", "content": "hi", "name": "ann"}])
    run_turn("r", "go")
    services.admit_turn(**TALK, client_id="q", content="and?")
    assert found("content") == []
    assert found("user") == []


def test_hidden_replaced_and_purged_messages_are_found():
    make_session()
    store(KEY, "1", KEY, "2")
    services.trim_session(**TALK, keep_last=2, reason="")
    claim = run_turn("r", KEY)
    finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    services.admit_turn(**TALK, client_id="e", content="no", replaces=5, expect_seq=5, owner="me")
    expected = [("hidden", 1), ("shown", 3), ("replaced", 5)]
    assert [(each.state, each.seq) for each in found()] == expected
    services.purge_session(**TALK, reason="")
    assert {(each.state, each.scope) for each in found()} == {("purged", SERVER)}


def test_a_waiting_message_a_partial_reply_and_a_reason_are_found():
    make_session()
    claim = run_turn("a", "hi")
    finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    Feedback.objects.create(
        session=Session.objects.get(), turn="a", user_seq=1, value=-1, reason=f"no {KEY}!"
    )
    save_partial(claim=run_turn("b", "go"), text=f"Using {KEY}", step=1)
    services.admit_turn(**TALK, client_id="c", content=KEY)
    expected = [("feedback", "a", "shown", ""), ("turn", "b", "running", "busy")]
    expected.append(("turn", "c", "waiting", ""))
    assert [(f.field, f.turn, f.state, f.obstacle) for f in found()] == expected
    assert all(each.is_replying for each in found())
    Session.objects.update(running=None)  # damaged: a redaction refuses the turn still
    assert [f.obstacle for f in found()] == ["", "busy", ""]


def test_other_places_are_named():
    session = make_session(title=f"On {KEY}", instructions=KEY, metadata={"a": [{KEY: 1}]})
    services.add_note(**TALK, text=f"He sent {KEY}")
    assert [each.field for each in found()] == ["title", "instructions", "metadata", "note"]
    assert {each.obstacle for each in found()} == {"manual"}
    assert found()[-1].note == session.notes.get().pk
    assert [each.field for each in found("1")] == ["metadata"]


def test_what_refuses_a_redaction_is_named():
    session = make_session()
    store(KEY)
    assert finds() == [("message", "shown", "")]
    Session.objects.update(held_at=timezone.now())
    assert finds() == [("message", "shown", "held")]
    services.release_session(**TALK, reason="")
    services.purge_session(**TALK, reason="")
    record(session, AuditAction.ERASE, BY, "")
    assert finds() == [("message", "purged", "erased")]


def test_the_name_of_a_call_stays_after_a_redaction():
    make_session()
    call = {"id": "1", "name": "sk-tool", "args": {}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    services.append_messages(**TALK, messages=[message])
    assert finds("sk-tool") == [("message", "shown", "")]
    services.redact_message(**TALK, seq=1, reason="")
    assert finds("sk-tool") == [("message", "redacted", "manual")]


def test_a_message_and_a_turn_are_located_by_their_numbers():
    session = make_session()
    store("hi", "hello")
    save_partial(claim=run_turn("run", "go"), text="so", step=1)
    services.admit_turn(**TALK, client_id="wait", content="and?")
    services.redact_message(**TALK, seq=2, reason="")
    turns = [locate(session_pk=session.pk, turn=name) for name in ("run", "wait")]
    messages = [locate(session_pk=session.pk, seq=seq) for seq in (1, 2)]
    assert [(f.state, f.obstacle) for f in turns if f] == [("running", "busy"), ("waiting", "")]
    assert [(f.state, f.role) for f in messages if f] == [
        ("shown", "user"),
        ("redacted", "assistant"),
    ]
    services.stop_turn(**TALK, turn="wait")
    stopped = locate(session_pk=session.pk, turn="wait")
    assert stopped is not None
    assert (stopped.state, stopped.obstacle) == ("redacted", "manual")
    for unknown in ({"seq": 10**30}, {"seq": 9}, {"turn": "no"}):
        assert locate(session_pk=session.pk, **unknown) is None


def test_all_that_is_found_can_be_redacted():
    make_session()
    store(KEY, KEY)
    run_turn("r", KEY)
    services.admit_turn(**TALK, client_id="c", content=KEY)
    services.purge_session(**TALK, reason="")
    for each in found():
        at = {"session_key": each.session_key, "scope": each.scope, "session_pk": each.session_pk}
        if each.field == "message":
            services.redact_message(**at, seq=each.seq, by=BY, reason="")
        else:
            services.redact_turn(**at, turn=each.turn, by=BY, reason="")
    assert found() == []
    assert KEY not in str([*Message.stored.values(), *Turn.objects.values()])


def test_only_the_selected_sessions_are_searched():
    ann = make_user()
    make_session()
    other = make_session(owner=ann)
    store(KEY)
    store(KEY, scope=other.scope)
    assert [each.session_pk for each in found(scope=other.scope)] == [other.pk]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 3, 10])
@pytest.mark.parametrize("read", [1, 2, 100])
def test_nothing_is_missed_or_repeated_at_the_borders_of_statements(monkeypatch, rows, read):
    monkeypatch.setattr(finding, "SEARCHED_ROWS", rows)
    monkeypatch.setattr(finding, "READ_ROWS", read)
    sizes = (0, 4, 1, 2, 0, 5)
    for number, size in enumerate(sizes):
        make_session(f"s{number}", title=KEY)
        if size:
            store(*[KEY] * size, session_key=f"s{number}")
    expected = [(f"s{n}", seq) for n, size in enumerate(sizes) for seq in range(1, size + 1)]
    messages = [(f.session_key, f.seq) for f in found() if f.field == "message"]
    assert messages == expected
    assert [f.session_key for f in found() if f.field == "title"] == [f"s{n}" for n in range(6)]


def test_the_turns_of_a_long_session_are_found_once(monkeypatch):
    monkeypatch.setattr(finding, "SEARCHED_ROWS", 2)
    make_session()
    for number in range(3):
        claim = run_turn(f"t{number}", "go")
        finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    Turn.objects.update(partial=KEY)
    services.admit_turn(**TALK, client_id="run", content="go", owner="me")
    services.admit_turn(**TALK, client_id="wait", content=KEY)
    assert sorted(f.turn for f in found()) == ["t0", "t1", "t2", "wait"]


def test_a_statement_searches_a_bounded_number_of_messages(monkeypatch):
    """Without the bound, a search of one long session would be one long statement."""
    monkeypatch.setattr(finding, "SEARCHED_ROWS", 10)
    make_session()
    store(*["x"] * 35)
    calls = []
    list(find_text(sessions=Session.objects.all(), text=KEY, progress=lambda *n: calls.append(n)))
    assert calls == [(0, 35), (10, 35), (20, 35), (30, 35), (35, 35)]


@pytest.mark.slow
def test_short_sessions_share_statements():
    numbers = []
    for count in (2, 100):
        for number in range(count):
            make_session(f"{count}-{number}")
            store(KEY, session_key=f"{count}-{number}")
        with CaptureQueriesContext(connection) as captured:
            assert len(found(key__startswith=f"{count}-")) == count
        numbers.append(len(captured))
    assert numbers[1] <= numbers[0] + 3


@pytest.mark.parametrize("text", ["", " \n", "x" * 10_001, "a\0"])
def test_a_text_that_cannot_be_searched_is_refused_before_the_search(text):
    with pytest.raises(BadInput):
        find_text(sessions=Session.objects.all(), text=text)
