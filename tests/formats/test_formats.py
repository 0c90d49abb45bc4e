"""Sessions as text and back: what each format holds, and that ours loses nothing."""

from __future__ import annotations

import csv
import gc
import io
import json
import logging
import tracemalloc
import unicodedata
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.db.models import F
from langchain_core.messages import convert_to_openai_messages, messages_from_dict
from markdown_it import MarkdownIt

from chatmemory import codec
from chatmemory.formats import (
    FORMATS,
    Target,
    awrite_export,
    export_sessions,
    exporting,
    import_lines,
    reading,
)
from chatmemory.formats.dialogues import from_openai
from chatmemory.formats.people import csv_row
from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.models import AuditEntry, Feedback, Message, Session, Turn
from chatmemory.services import (
    Actor,
    abegin_export,
    add_note,
    admit_turn,
    append_messages,
    clear_session,
    purge_session,
    release_session,
    restore_session,
    set_feedback,
    stop_turn,
    tag_session,
    trim_session,
    user_scope,
)
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.turns.claims import claim_next
from chatmemory.services.turns.progress import add_rows, finish_turn, save_partial, start_turn
from chatmemory.services.turns.unstored import read_unstored
from tests.factories import BY, make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

CALL = {"name": "weather", "args": {"city": "Oslo", "days": 2.5}, "id": "c1", "type": "tool_call"}
MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123457, tzinfo=UTC)


@pytest.fixture
def mira(db: None) -> Any:
    return make_user("mira")


def make_talk(owner: Any, key: str = "talk") -> Session:
    """Make a session that uses every exported column."""
    scope = user_scope(owner)
    at: dict[str, Any] = {"session_key": key, "by": BY, "scope": scope}
    session = make_session(
        key,
        owner=owner,
        title="Weather, “früh” 🌦",
        instructions="Be short.\nBe kind.",
        metadata={"z": 1.0, "a": [0.1, 2**60, -1e-7], "tags": ["x"]},
    )
    for tag in ("contract", "émeute 🌦"):
        tag_session(**at, tag=tag, reason="")
    for text in ("Called “Zoë” 🌦", "A second note."):
        add_note(**at, text=text)
    append_messages(**at, messages=make_messages("one", "two", "three", "four"), client_id="first")
    trim_session(**at, keep_last=2, reason="long")
    turn(at, "t1", calls=True)
    turn(at, "t2", error="model_error")
    set_feedback(**at, turn="t1", value=-1, reason="Say “Bö” 🌦")
    set_feedback(**at, turn="t2", value=1)
    admit_turn(**at, client_id="t3", content="never mind")
    stop_turn(**at, turn="t3")
    append_messages(**at, messages=make_messages("a", "b", "c"))
    rows = Message.stored.filter(session=session)
    last = session_of(session).last_seq
    rows.filter(seq=last - 2).update(text="", body=None, redacted=True, revision=9)
    rows.filter(seq=last - 1).update(body='{"role":"assistant', quarantined=True)
    rows.filter(seq=last).update(created_at=MOMENT)
    session.feedback.update(created_at=MOMENT, changed_at=MOMENT)
    Session.objects.filter(pk=session.pk).update(
        created_at=MOMENT - timedelta(days=3),
        revision=9,
        rows_revision=9,
        last_message_at=MOMENT,
        last_active_day=date(2026, 3, 1),
        expires_at=MOMENT + timedelta(days=36_500),
        held_at=MOMENT,
        archived_at=MOMENT,
    )
    return session_of(session)


def session_of(session: Session) -> Session:
    return Session.objects.get(pk=session.pk)


def turn(
    at: dict[str, Any], client_id: str, *, calls: bool = False, error: str = "", **more: Any
) -> None:
    """Run a turn from its admission to its end."""
    claim = admit_turn(
        **at, client_id=client_id, content=f"ask {client_id}", owner="me", **more
    ).claim
    assert claim is not None
    assert start_turn(claim=claim)
    if calls:
        call = {"role": "assistant", "content": "", "tool_calls": [CALL], "usage": {"in": 3}}
        result = {"role": "tool", "content": "sun", "tool_call_id": "c1", "artifact": {"t": 1.0}}
        assert add_rows(claim=claim, messages=[call, result], step=0)
    finish_turn(
        claim=claim,
        message={"role": "assistant", "content": f"reply {client_id}", "id": "x"},
        status="failed" if error else "complete",
        error=error,
        model="m-1",
        usage={"in": 3, "share": 0.1},
        step=1,
    )


def text_of(format: str, **where: Any) -> str:
    sessions = Session.objects.filter(**where)
    return "".join(export_sessions(sessions, format=format))


def import_text(text: str, owner: Any | None = None, **options: Any) -> list[Any]:
    scope = None if owner is None else user_scope(owner)
    lines = enumerate((line.encode() for line in text.splitlines()), 1)
    return list(import_lines(lines, target=Target(by=BY, scope=scope, **options)))


def without_address(text: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    for line in lines:
        line.pop("scope", None)
    return lines


def test_jsonl_round_trips_a_session(mira):
    old, omar = make_talk(mira), make_user("omar")
    text = text_of("jsonl", pk=old.pk)
    assert '"tags":["contract","émeute 🌦"]' in text
    assert '"notes":[{"text":"Called “Zoë” 🌦","actor_kind":' in text
    [outcome] = import_text(text, omar, reason="moved")
    assert (outcome.is_new, outcome.error, outcome.messages) == (True, None, old.last_seq)
    new = Session.objects.get(scope=user_scope(omar), key="talk")
    assert text_of("jsonl", pk=new.pk) == text.replace(old.scope, new.scope)
    assert new.owner == omar
    same = [f.name for f in Session._meta.fields if f.name not in ("id", "scope", "owner", "epoch")]
    different = {n for n in same if getattr(new, n) != getattr(old, n)}
    assert different == {"fence"}
    for model in (Message.stored, Turn.objects, Feedback.objects):
        left_out = {"id", "session_id", "epoch", "position", "fence", "lease_owner", "lease_until"}
        mine, theirs = (
            [
                {name: value for name, value in row.items() if name not in left_out}
                for row in model.filter(session=session).order_by("pk").values()
            ]
            for session in (old, new)
        )
        key = {Message.stored: "seq", Turn.objects: "client_id", Feedback.objects: "turn"}[model]
        assert sorted(mine, key=lambda row: row[key]) == sorted(theirs, key=lambda row: row[key])


def test_an_imported_session_can_be_continued(mira):
    make_talk(mira)
    text = text_of("jsonl")
    omar = make_user("omar")
    import_text(text, omar)
    new = Session.objects.get(scope=user_scope(omar))
    Session.objects.filter(pk=new.pk).update(archived_at=None)
    at = {"session_key": "talk", "by": BY, "scope": new.scope}
    appended = append_messages(**at, messages=make_messages("more"))
    assert appended.first_seq == new.last_seq + 1
    assert admit_turn(**at, client_id="t1", content="ask t1").is_duplicate
    assert import_text(text, omar)[0].is_new is False


def test_an_import_writes_an_audit_entry(mira):
    old = make_talk(mira)
    import_text(text_of("jsonl"), make_user("omar"), reason="moved")
    entry = AuditEntry.objects.get(action="import")
    assert (entry.reason, entry.counts) == ("moved", {"messages": old.last_seq, "turns": 3})
    assert Session.objects.get(pk=entry.session_pk).last_seq == old.last_seq


def test_the_export_of_an_import_does_not_depend_on_the_database(mira):
    """Times have microseconds, and the keys of metadata are sorted, on every database."""
    make_talk(mira)
    lines = without_address(text_of("jsonl"))
    assert list(lines[0]["metadata"]) == ["a", "tags", "z"]
    assert lines[0]["metadata"] == {"a": [0.1, 2**60, -1e-7], "tags": ["x"], "z": 1.0}
    assert lines[0]["archived_at"] == "2026-03-01T12:30:15.123457+00:00"
    assert lines[-2]["created_at"] == "2026-03-01T12:30:15.123457+00:00"
    assert [line["type"] for line in lines if line["type"] != "message"] == [
        "session",
        *["turn"] * 3,
        *["feedback"] * 2,
        "end",
    ]


def test_each_turn_precedes_its_message_and_turns_without_one_come_first(mira):
    make_talk(mira)
    lines = without_address(text_of("jsonl"))
    order = [line.get("client_id") for line in lines if "client_id" in line]
    assert order[:2] == ["t3", "first"]
    assert [name for name in order if name in ("t1", "t2")] == ["t1", "t1", "t2", "t2"]


def test_empty_and_vacuumed_sessions_round_trip(mira):
    empty = make_session("empty", owner=mira)
    short = make_session("short", owner=mira, first_seq=4, stored_from=3, last_seq=3)
    Message.stored.create(session=short, **row(3, "left"))
    text = text_of("jsonl")
    omar = make_user()
    assert [(one.is_new, one.messages) for one in import_text(text, omar)] == [(True, 0), (True, 1)]
    assert text_of("jsonl", owner=omar) == text.replace(empty.scope, user_scope(omar))


def row(seq: int, text: str, **more: Any) -> dict[str, Any]:
    """Return the columns of a message."""
    role = ("user", "assistant")[seq % 2]
    plain = {"role": role, "text": text, "status": "complete", "error": "", "model": ""}
    return {"seq": seq, "tokens": 1, **plain, **more}


def test_a_running_turn_is_interrupted_by_the_import(mira):
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": user_scope(mira)}
    make_session("talk", owner=mira)
    claim = admit_turn(**at, client_id="t1", content="ask", owner="me").claim
    assert claim is not None
    start_turn(claim=claim)
    add_rows(
        claim=claim,
        messages=[{"role": "assistant", "content": "", "tool_calls": [CALL]}],
        step=0,
    )
    save_partial(claim=claim, text="It is", step=1)
    waiting = {"client_id": "t2", "asked": '{"role":"user","content":"and then?"}'}
    old = Session.objects.get()
    Turn.objects.create(session=old, status="waiting", position=9, epoch=old.epoch, **waiting)
    Session.objects.update(waiting=1)
    text = text_of("jsonl")
    assert '"and then?' in text.replace("\\", "")
    omar = make_user()
    [outcome] = import_text(text, omar)
    assert outcome.is_new
    new = Session.objects.get(owner=omar)
    assert (new.running, new.waiting, new.last_seq) == (None, 0, 4)
    rows = Message.stored.filter(session=new, seq__gt=2).order_by("seq")
    assert [(r.role, r.status) for r in rows] == [
        ("tool", "interrupted"),
        ("assistant", "interrupted"),
    ]
    assert rows[1].text == "It is"
    assert dict(new.turns.values_list("client_id", "status")) == {
        "t1": "interrupted",
        "t2": "cancelled",
    }
    assert import_text(text, omar)[0].is_new is False


def waiting_talk(owner: Any) -> Session:
    """Make a session with a running turn and a waiting turn."""
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": user_scope(owner)}
    make_session("talk", owner=owner)
    admit_turn(**at, client_id="t1", content="ask", owner="me")
    admit_turn(**at, client_id="t2", content="and then?")
    return Session.objects.get()


def unstored_texts(session: Session) -> list[tuple[str, bool]]:
    found = read_unstored(session=session)
    return [(one.turn.asked_text or one.turn.partial, one.is_hidden) for one in found]


@pytest.mark.regression
def test_the_text_of_an_imported_waiting_turn_is_kept_for_undo_days(mira):
    waiting_talk(mira)
    omar = make_user()
    import_text(text_of("jsonl"), omar)
    new = Session.objects.get(owner=omar)
    assert unstored_texts(new) == [("and then?", False)]
    assert "and then?" in "".join(export_sessions(Session.objects.filter(pk=new.pk), format="csv"))
    entry = clear_session(session_key="talk", by=BY, scope=new.scope, reason="")
    assert unstored_texts(new) == [("and then?", True)]
    restore_session(entry_pk=entry.pk, by=BY, scope=new.scope, reason="")
    new.refresh_from_db()
    assert unstored_texts(new) == [("and then?", False)]
    new.turns.update(ended_at=F("ended_at") - timedelta(days=31))
    vacuum()
    assert unstored_texts(new) == []


@pytest.mark.regression
def test_a_waiting_message_that_was_cleared_before_the_export_remains_hidden(mira):
    session = waiting_talk(mira)
    clear_session(session_key="talk", by=BY, scope=session.scope, reason="")
    omar = make_user()
    import_text(text_of("jsonl"), omar)
    new = Session.objects.get(owner=omar)
    assert ("and then?", False) not in unstored_texts(new)
    assert new.turns.filter(client_id="t2").exclude(asked="").exists()


def test_feedback_of_vacuumed_turns_is_exported_and_imported(mira, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}
    old, omar = make_talk(mira), make_user("omar")
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": old.scope}
    release_session(**at, reason="")
    clear_session(**at, reason="")
    vacuum()
    text = text_of("jsonl")
    [outcome] = import_text(text, omar)
    assert outcome.error is None
    new = Session.objects.get(owner=omar)
    assert sorted(new.feedback.values_list("turn", "value", "reason")) == [
        ("t1", -1, ""),
        ("t2", 1, ""),
    ]
    assert text_of("jsonl", pk=new.pk) == text.replace(old.scope, new.scope)
    assert list(check_integrity(session_pk=new.pk)) == []


def test_feedback_that_changes_during_an_export_is_imported_with_its_newest_value(mira):
    make_session("talk", owner=mira)
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": user_scope(mira)}
    for name in ("t1", "t2", "t3"):
        turn(at, name)
    set_feedback(**at, turn="t1", value=1)
    set_feedback(**at, turn="t2", value=1)
    pieces = []
    for piece in export_sessions(Session.objects.all(), format="jsonl"):
        pieces.append(piece)
        if '"seq":6' in piece:  # all messages were read
            set_feedback(**at, turn="t1", value=-1)
            set_feedback(**at, turn="t2", value=None)
            set_feedback(**at, turn="t3", value=1)
    omar = make_user("omar")
    [outcome] = import_text("".join(pieces), omar)
    assert outcome.error is None
    new = Session.objects.get(owner=omar)
    rows = Message.stored.filter(session=new, feedback__isnull=False)
    assert list(rows.order_by("seq").values_list("seq", "feedback")) == [(2, -1), (6, 1)]
    assert list(check_integrity(session_pk=new.pk)) == []


@pytest.mark.parametrize("format", ["csv", "markdown", "own-json", "own-markdown"])
def test_formats_for_people_show_feedback(mira, format):
    make_talk(mira)
    text = text_of(format)
    assert (text.count("rated bad"), text.count("rated good")) == (1, 1)
    assert text.count("Say “Bö” 🌦") == (0 if format == "csv" else 1)
    if format == "own-json":
        [session] = json.loads(text)
        assert [(given["on"], given["value"]) for given in session["feedback"]] == [
            (5, "bad"),
            (9, "good"),
        ]


def test_the_last_line_counts_missing_rows(mira, caplog):
    session = make_talk(mira)
    Message.stored.filter(session=session, seq__in=(3, 4, session.last_seq)).delete()
    with caplog.at_level(logging.WARNING):
        text = text_of("jsonl")
    assert without_address(text)[-1]["missing"] == 3
    assert f"Session {session.pk}: 3 of its rows are missing." in caplog.text
    [outcome] = import_text(text, make_user())
    assert str(outcome.error).startswith("seq must be 3")


def test_rows_appended_during_an_export_are_not_exported(mira, monkeypatch):
    monkeypatch.setattr(reading, "PAGE", 3)
    make_session("talk", owner=mira)
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": user_scope(mira)}
    append_messages(**at, messages=make_messages(*"abcd"))
    pieces = export_sessions(Session.objects.all(), format="jsonl")
    begun = [next(pieces), next(pieces)]
    append_messages(**at, messages=make_messages("late"))
    admit_turn(**at, client_id="late", content="late", owner="me")
    text = "".join([*begun, *pieces])
    assert text.count('"type":"message"') == 4
    assert "late" not in text
    assert import_text(text, make_user())[0].is_new


def test_a_turn_that_starts_during_the_read_is_exported_once(mira):
    """It waits when the waiting turns are read, and has a row when the head is read."""
    make_session("talk", owner=mira)
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": user_scope(mira)}
    admit_turn(**at, client_id="t1", content="ask")
    session = Session.objects.get()
    waiting = list(session.turns.waiting())
    assert claim_next(session_pk=session.pk, owner="me")
    both = list(reading.Reading(Session.objects.get(), waiting).turns_and_rows())
    assert [type(one).__name__ for one in both] == ["Turn", "Message"]


@pytest.mark.slow
def test_the_page_size_does_not_change_the_output(mira, monkeypatch):
    make_talk(mira)
    whole = {format: text_of(format) for format in FORMATS}
    monkeypatch.setattr(reading, "PAGE", 1)
    assert {format: text_of(format) for format in FORMATS} == whole


@pytest.mark.long
@pytest.mark.parametrize("format", FORMATS)
def test_memory_does_not_grow_with_the_number_of_messages(mira, monkeypatch, format):
    few, many = (400, 2_000) if format == "jsonl" else (200, 1_000)
    monkeypatch.setattr(reading, "PAGE", few // 10)
    text_of(format)  # imports modules
    peaks = []
    for count in (few, many):
        session = make_session(f"talk{count}", owner=mira, last_seq=count)
        fill(session, count)
        one = Session.objects.filter(pk=session.pk)
        # The lower of two: other threads and growing caches of the process only ever add.
        peaks.append(min(peak_of(export_sessions(one, format=format)) for _ in range(2)))
    assert peaks[1] < 2 * peaks[0]


def fill(session: Session, count: int) -> None:
    """Store `count` messages, a multiple of eight: insert an eighth, and double it three times."""
    stored = count // 8
    rows = [Message(session=session, **row(seq, "x" * 200)) for seq in range(1, stored + 1)]
    Message.stored.bulk_create(rows)
    names = "session_id, role, text, status, error, model, tokens"
    while stored < count:
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO chatmemory_message (seq, {names}) "  # noqa: S608  # names only
                f"SELECT seq + {stored}, {names} FROM chatmemory_message WHERE session_id = %s",
                [session.pk],
            )
        stored *= 2


def peak_of(pieces: Any) -> int:
    """Return the peak memory while these pieces are created and dropped.

    Without garbage in cycles, of which Python keeps some pages of rows for as long as it likes.
    """
    tracemalloc.start()
    try:
        for number, _ in enumerate(pieces):
            if number % 20 == 0:
                gc.collect()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def replaced_talk(owner: Any) -> Session:
    """Make a session whose rows 3 and 4 are replaced by 5 and 6; its first two are trimmed."""
    session = make_session("talk", owner=owner, instructions="Be short.")
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": session.scope}
    append_messages(**at, messages=make_messages("old", "older"))
    turn(at, "t1")
    turn(at, "t2", replaces=3, expect_seq=3)
    trim_session(**at, keep_last=4, reason="")
    return session_of(session)


def test_the_langchain_form_equals_the_history_class(mira):
    make_talk(mira)
    [line] = text_of("langchain").splitlines()
    history = DjangoChatMessageHistory("talk", owner=mira)
    assert messages_from_dict(json.loads(line)) == history.messages
    assert len(history.messages) > 5


def test_the_openai_form_contains_only_messages_that_a_provider_accepts(mira):
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": make_talk(mira).scope}
    Session.objects.update(archived_at=None)
    orphan = {"role": "tool", "content": "whose?", "tool_call_id": "c1"}
    append_messages(**at, messages=[orphan, {"role": "assistant", "content": ""}])
    [line] = text_of("openai").splitlines()
    called = {"name": "weather", "arguments": '{"city":"Oslo","days":2.5}'}
    assert json.loads(line) == {
        "messages": [
            {"role": "system", "content": "Be short.\nBe kind."},
            {"role": "user", "content": "three"},
            {"role": "assistant", "content": "four"},
            {"role": "user", "content": "ask t1"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": called}],
            },
            {"role": "tool", "content": "sun", "tool_call_id": "c1"},
            {"role": "assistant", "content": "reply t1"},
            {"role": "user", "content": "ask t2"},
            {"role": "assistant", "content": "reply t2"},
            {"role": "user", "content": "c"},
        ]
    }


@pytest.mark.regression
def test_the_openai_form_contains_each_call_with_an_id_once(mira):
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": make_talk(mira).scope}
    Session.objects.update(archived_at=None)
    calls = [{"id": each, "name": "f", "args": {}} for each in ("x", "x", None)]
    append_messages(**at, messages=[{"role": "assistant", "content": "", "tool_calls": calls}])
    [line] = text_of("openai").splitlines()
    assert [call["id"] for call in json.loads(line)["messages"][-1]["tool_calls"]] == ["x"]


def test_openai_content_equals_langchains_conversion(mira):
    make_session("talk", owner=mira)
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    messages: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]},
        {"role": "assistant", "content": "A cat.", "name": "bot"},
    ]
    append_messages(session_key="talk", by=BY, scope=user_scope(mira), messages=messages)
    history = DjangoChatMessageHistory("talk", owner=mira)
    found = json.loads(text_of("openai"))["messages"]
    assert found == convert_to_openai_messages(history.messages)


@pytest.mark.parametrize("format", ["langchain", "openai"])
def test_superseded_and_trimmed_rows_are_in_no_conversation(mira, format):
    replaced_talk(mira)
    text = text_of(format)
    assert "ask t2" in text
    assert "ask t1" not in text
    assert "old" not in text


@pytest.mark.parametrize("format", ["langchain", "openai"])
def test_superseded_replacements_are_in_no_conversation(mira, format):
    session = make_session("talk", owner=mira)
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": session.scope}
    turn(at, "t1")
    turn(at, "t2")
    turn(at, "t3", replaces=3, expect_seq=3)
    turn(at, "t4", replaces=1, expect_seq=5)
    text = text_of(format)
    assert [f"ask t{number}" in text for number in (1, 2, 3, 4)] == [False, False, False, True]


@pytest.mark.parametrize("format", ["langchain", "openai"])
def test_a_session_without_messages_has_no_line_in_conversation_formats(mira, format):
    make_session("empty", owner=mira, instructions="Be short.")
    assert text_of(format) == ""


@pytest.mark.parametrize("format", ["langchain", "openai"])
def test_conversation_formats_can_be_imported(mira, format):
    make_talk(mira)
    text = text_of(format)
    omar = make_user()
    assert [one.error for one in import_text(text, omar)] == [None]
    assert [one.is_new for one in import_text(text, omar)] == [False]
    Session.objects.filter(owner=mira).update(scope="elsewhere")
    again = text_of(format, owner=omar)
    if format == "langchain":
        assert json.loads(again)[3:6] == json.loads(text)[3:6]
    else:
        assert again == text


@pytest.mark.parametrize(
    "given",
    [
        {"role": "developer", "content": "x"},
        {"role": "assistant", "content": None, "refusal": "no"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{oops"}}
            ],
        },
        {"role": "function", "name": "f", "content": "1"},
    ],
)
def test_other_fields_of_openai_messages_are_kept(given):
    plain = from_openai(given, "messages[0]")
    assert codec.encode(plain).role in codec.ROLES
    if given["role"] == "developer":
        assert plain == {"role": "system", "content": "x"}
    if "refusal" in given:
        assert plain["additional_kwargs"] == {"refusal": "no"}
    if "tool_calls" in given:
        assert plain["invalid_tool_calls"][0]["args"] == "{oops"
    if given["role"] == "function":
        assert (plain["role"], plain["kind"]) == ("tool", "function")


def test_a_langchain_secret_remains_plain_data(mira, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "the-key")
    secret = {"lc": 1, "type": "secret", "id": ["OPENAI_API_KEY"]}
    make_session("talk", owner=mira)
    message = {"role": "assistant", "content": "x", "additional_kwargs": {"k": secret}}
    append_messages(session_key="talk", by=BY, scope=user_scope(mira), messages=[message])
    for format in FORMATS:
        text = text_of(format)
        assert "the-key" not in text
        if format in ("jsonl", "langchain"):
            assert import_text(text, make_user())[0].error is None
    kept = [row.plain()["additional_kwargs"] for row in Message.objects.all()]
    assert kept == [{"k": secret}] * 3


@pytest.mark.parametrize(
    "text",
    [
        "=HYPERLINK(1)",
        "+1",
        "-1",
        "@SUM",
        "\t=1",
        "\tx",
        "\rx",
        "\nx",
        "  =1",
        "\u00a0=1",
        "\u200b=1",
        "\ufeff=1",
        "＝1",  # noqa: RUF001  # the wide form is meant
        "＋1",  # noqa: RUF001
        "－1",  # noqa: RUF001
        "＠x",  # noqa: RUF001
        " \t＝1",  # noqa: RUF001
        "  \tx",
    ],
)
def test_no_cell_is_a_formula(text):
    [[cell, other]] = csv.reader(io.StringIO(csv_row(text, "a=1"), newline=""))
    assert (cell, other) == (f"'{text}", "a=1")


@pytest.mark.parametrize("text", ["\r=1", "\n=1"])
def test_neither_a_cell_nor_its_second_line_is_a_formula(text):
    assert csv_row(text) == f"\"'{text[0]}'=1\"\r\n"


@pytest.mark.regression
@pytest.mark.parametrize(
    "text",
    [
        *(f"{ignored}=1+1" for ignored in "\u00ad\u061c\u034f\u180e\u202e\u2061\ufe0f\x00\x1f"),
        "\u22121",
        " \u00ad\u22121",
        *(f"{sign}1" for sign in "\u207a\u208b\ufe62\ufb29\u2a75"),
    ],
)
def test_no_cell_is_a_formula_after_characters_that_a_spreadsheet_ignores(text):
    assert csv_row(text) == f'"\'{text}"\r\n'


@pytest.mark.regression
@pytest.mark.parametrize("between", [";", "; ", ";\u00ad", "\n", "\r", "\r\n", "\n "])
def test_no_part_of_a_cell_is_a_formula_where_semicolons_separate_cells(between):
    begin, rest = between.rstrip(" \u00ad"), between[len(between.rstrip(" \u00ad")) :]
    assert csv_row(f"a{between}=1") == f'"a{begin}\'{rest}=1"\r\n'


@pytest.mark.slow
def test_each_character_with_the_compatibility_form_of_a_sign_is_escaped():
    for char in map(chr, range(0x80, 0x110000)):
        if unicodedata.normalize("NFKC", char)[0] in "=+-@":
            assert csv_row(f"{char}1").startswith("\"'"), ascii(char)
        elif unicodedata.category(char) in ("Cf", "Mn", "Me", "Zs", "Cc"):
            assert csv_row(f"{char}=1").startswith("\"'"), ascii(char)


@pytest.mark.parametrize(
    "text", ["", " ", "x", "1", "'=1", "a\t=1", " x=1", "\u200b", "a;b=1", "\u00e9=1", "a\n1=1"]
)
def test_a_cell_without_a_formula_is_unchanged(text):
    assert next(csv.reader(io.StringIO(csv_row(text), newline=""))) == [text]


def test_a_formula_is_unchanged_in_json_lines(mira):
    session = make_talk(mira)
    Message.stored.filter(session=session, seq=1).update(text="=HYPERLINK(1)")
    lines = [json.loads(line) for line in text_of("jsonl").splitlines()]
    assert "=HYPERLINK(1)" in [line.get("text") for line in lines]


def test_all_cells_of_a_csv_file_are_quoted(mira):
    session = make_talk(mira)
    Message.stored.filter(session=session, seq=1).update(text='=1,"2"\r\n;3')
    Session.objects.update(title="=title", key="@key")
    text = text_of("csv")
    assert text.startswith('\ufeff"session","title",')
    rows = list(csv.reader(io.StringIO(text[1:], newline="")))
    assert list(csv.reader(io.StringIO(text[1:], newline=""), quoting=csv.QUOTE_NONNUMERIC)) == rows
    assert len(rows) == session.last_seq + 1
    assert {tuple(cells[:2]) for cells in rows[1:]} == {("'@key", "'=title")}
    assert rows[1][9] == '\'=1,"2"\r\n;3'
    states = {cells[3]: cells[6] for cells in rows[1:]}
    last = session.last_seq
    assert states["1"] == states["2"] == "hidden"
    assert states[str(last - 2)] == "redacted"
    assert states[str(last - 1)] == "unreadable"
    assert states["10"] == "failed; model_error; rated good"


@pytest.mark.parametrize("format", ["csv", "markdown"])
def test_formats_for_people_show_running_and_waiting_turns(mira, format):
    make_session("talk", owner=mira)
    at: dict[str, Any] = {"session_key": "talk", "by": BY, "scope": user_scope(mira)}
    claim = admit_turn(**at, client_id="t1", content="ask", owner="me").claim
    assert claim is not None
    start_turn(claim=claim)
    save_partial(claim=claim, text="so far", step=0)
    session = Session.objects.get()
    Turn.objects.create(
        session=session,
        client_id="t2",
        status="waiting",
        epoch=session.epoch,
        asked='{"role":"user","content":"and then?"}',
    )
    text = text_of(format)
    assert text.index("so far") < text.index("and then?")


def test_formats_for_people_show_superseded_rows_and_purged_sessions(mira):
    session = replaced_talk(mira)
    purge_session(session_key="talk", by=BY, scope=session.scope, reason="")
    rows = list(csv.reader(io.StringIO(text_of("csv"), newline="")))[1:]
    assert [cells[6] for cells in rows] == [
        "hidden",
        "hidden",
        "hidden; replaced",
        "hidden; replaced",
        "hidden",
        "hidden",
    ]
    assert rows[0][2].startswith("purged 20")


def test_no_text_escapes_its_fence_in_markdown(mira):
    nasty = "```\n# Not a heading\n````\n</pre><script>x</script>\r~~~\n# 2\n"
    session = make_session("t`al`k\n# x", owner=mira, title="``\n# [x](y) <b>", instructions=nasty)
    at: dict[str, Any] = {"session_key": session.key, "by": BY, "scope": session.scope}
    append_messages(
        **at, messages=[*make_messages(nasty), {"role": "assistant", "content": [nasty]}]
    )
    tokens = MarkdownIt("commonmark").parse(text_of("markdown"))
    headings = [tokens[n + 1] for n, token in enumerate(tokens) if token.type == "heading_open"]
    assert [token.content[:8] for token in headings] == ["``` `` #", "1: user,", "2: assis"]
    assert [child.type for child in headings[0].children or ()] == [
        "code_inline",
        "text",
        "code_inline",
    ]
    fences = [token.content for token in tokens if token.type == "fence"]
    shown = nasty.replace("\r", "\n") + "\n"
    assert fences[:3] == [shown, shown, shown]
    assert {token.type for token in tokens} <= {
        "heading_open",
        "heading_close",
        "inline",
        "paragraph_open",
        "paragraph_close",
        "fence",
    }


@pytest.mark.parametrize("format", FORMATS)
async def test_the_async_export_has_the_same_text(mira, monkeypatch, format):
    monkeypatch.setattr(exporting, "PIECES", 3)
    await sync_to_async(make_talk)(mira)
    export = await abegin_export(format=format, by=Actor.user(mira), reason="")
    pieces = [piece async for piece in awrite_export(export)]
    assert len(pieces) > 1
    assert "".join(pieces) == await sync_to_async(text_of)(format)


def test_an_unknown_form_is_refused_before_the_iteration():
    with pytest.raises(KeyError):
        export_sessions(Session.objects.none(), format="pdf")


def test_a_session_costs_few_statements(mira, django_assert_num_queries):
    make_session("talk", owner=mira)
    messages = make_messages(*["x"] * 300)
    append_messages(session_key="talk", by=BY, scope=user_scope(mira), messages=messages)
    # Three for sessions; waiting turns, head, tags, notes, other turns; two pages; feedback.
    with django_assert_num_queries(11):
        text_of("jsonl")
