"""Feedback on the reply of a turn: stored once, shown by the reply, counted for good."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from chatmemory.errors import BadInput, Busy, Held, NotFound, UnknownTurn
from chatmemory.models import AuditEntry, Feedback, Message, Session
from chatmemory.services import (
    Actor,
    admit_turn,
    append_messages,
    archive_session,
    clear_session,
    erase_person,
    hold_session,
    purge_session,
    read_page,
    redact_message,
    redact_turn,
    restore_session,
    set_feedback,
    stop_turn,
    trim_session,
)
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.turns.progress import add_rows, finish_turn
from tests.factories import TALK, make_messages, make_session, make_user
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db, pytest.mark.database]

CALL = {"id": "call1", "name": "weather", "args": {}}


def run(client_id: str, *, status: str = "complete", at=TALK, **more) -> None:
    """Run a turn of four rows: the message, a tool's call and result, and the reply."""
    claim = admit_turn(**at, client_id=client_id, content=client_id, owner="me", **more).claim
    assert claim is not None
    calls = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    result = {"role": "tool", "content": "rain", "tool_call_id": "call1"}
    assert add_rows(claim=claim, messages=[calls, result], step=0)
    reply = {"role": "assistant", "content": f"reply {client_id}"}
    assert finish_turn(claim=claim, status=status, message=reply)


@pytest.fixture
def talk() -> Session:
    """A session with two turns: the rows 1 to 4, and 5 to 8."""
    session = make_session()
    run("t1")
    run("t2")
    session.refresh_from_db()
    return session


rate = partial(set_feedback, **TALK)


def stored() -> list[tuple[str, int, str]]:
    return list(Feedback.objects.order_by("pk").values_list("turn", "value", "reason"))


def shown() -> dict[int, int | None]:
    """Return the feedback of the rows that show any."""
    rows = read_page(**TALK).rows
    return {row.seq: row.feedback for row in rows if row.feedback is not None}


def revisions() -> tuple[int, int]:
    session = Session.objects.get()
    return session.revision, session.rows_revision


def test_the_last_reply_of_the_turn_shows_the_feedback_with_a_new_revision(talk):
    rate(turn="t1", value=1, reason="It helped.")
    assert stored() == [("t1", 1, "It helped.")]
    assert shown() == {4: 1}
    assert revisions() == (talk.revision + 1, talk.revision + 1)
    assert Message.stored.get(seq=4).revision == talk.revision + 1
    assert [row.public()["feedback"] for row in read_page(**TALK).rows][:5] == [
        *[None] * 3,
        1,
        None,
    ]


def test_the_same_feedback_again_changes_nothing(talk):
    rate(turn="t1", value=-1, reason="Too long.")
    before = (revisions(), Feedback.objects.values().get())
    rate(turn="t1", value=-1, reason="Too long.")
    assert (revisions(), Feedback.objects.values().get()) == before


def test_another_value_replaces_value_and_reason(talk):
    rate(turn="t1", value=-1, reason="Too long.")
    given = Feedback.objects.get()
    rate(turn="t1", value=1)
    assert stored() == [("t1", 1, "")]
    assert shown() == {4: 1}
    assert Feedback.objects.get().created_at == given.created_at
    assert Feedback.objects.get().changed_at >= given.changed_at


def test_another_reason_changes_no_row(talk):
    rate(turn="t1", value=1)
    before = revisions()
    rate(turn="t1", value=1, reason="It helped.")
    assert stored() == [("t1", 1, "It helped.")]
    assert revisions() == before


def test_withdrawn_feedback_is_deleted_and_no_longer_shown(talk):
    rate(turn="t1", value=1, reason="It helped.")
    before, _ = revisions()
    rate(turn="t1", value=None)
    assert (stored(), shown()) == ([], {})
    assert revisions() == (before + 1, before + 1)
    rate(turn="t1", value=None)
    assert revisions() == (before + 1, before + 1)


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_reply_that_ended_early_can_be_rated(status):
    make_session()
    run("t1", status=status)
    rate(turn="t1", value=-1)
    assert shown() == {4: -1}


def test_a_superseded_reply_can_be_rated(talk):
    run("t3", replaces=5, expect_seq=5)
    rate(turn="t2", value=-1)
    assert shown() == {8: -1}


def test_rows_after_the_turn_are_not_its_reply(talk):
    append_messages(**TALK, messages=make_messages("more", "answer"))
    rate(turn="t2", value=1)
    assert shown() == {8: 1}


def test_an_archived_session_accepts_feedback(talk):
    archive_session(**TALK, reason="done")
    rate(turn="t1", value=1)
    assert shown() == {4: 1}


def test_a_hold_keeps_feedback_that_was_given(talk):
    rate(turn="t1", value=1, reason="It helped.")
    hold_session(**TALK, reason="case 7")
    rate(turn="t1", value=1, reason="It helped.")
    for value, reason in ((None, ""), (-1, "It helped."), (1, "")):
        with pytest.raises(Held):
            rate(turn="t1", value=value, reason=reason)
    rate(turn="t2", value=-1)
    assert stored() == [("t1", 1, "It helped."), ("t2", -1, "")]


def test_a_turn_without_a_visible_reply_is_unknown(talk):
    append_messages(**TALK, messages=make_messages("hi"), client_id="batch")
    trim_session(**TALK, before_seq=5, reason="old")
    for turn in ("t1", "never", "batch", "T2"):
        with pytest.raises(UnknownTurn):
            rate(turn=turn, value=1)
    assert stored() == []


def test_a_cancelled_turn_is_unknown(talk):
    admit_turn(**TALK, client_id="t3", content="hi")
    stop_turn(**TALK, turn="t3")
    with pytest.raises(UnknownTurn):
        rate(turn="t3", value=1)


def test_a_turn_whose_run_stored_no_reply_is_unknown():
    """A clear ends the run, and its restore shows the user's message again."""
    make_session()
    admit_turn(**TALK, client_id="t1", content="hi", owner="me")
    entry = clear_session(**TALK, reason="test")
    restore_session(entry_pk=entry.pk, by=TALK["by"], scope=TALK["scope"], reason="test")
    with pytest.raises(UnknownTurn, match="no reply"):
        rate(turn="t1", value=1)


@pytest.mark.parametrize("owner", ["", "me"])
def test_a_turn_that_waits_or_runs_is_busy(talk, owner):
    admit_turn(**TALK, client_id="t3", content="hi", owner=owner)
    with pytest.raises(Busy) as raised:
        rate(turn="t3", value=1)
    assert raised.value.turn == "t3"


@pytest.mark.parametrize(
    ("given", "code", "field"),
    [
        *[({"value": value}, "bad_field", "value") for value in (0, 2, -2, True, 1.0, "1")],
        ({"value": 1, "reason": "x" * 1_001}, "too_large", "reason"),
        ({"value": 1, "reason": "a\0"}, "bad_text", "reason"),
        ({"value": 1, "reason": "\ud800"}, "bad_text", "reason"),
        ({"value": 1, "reason": " \n"}, "empty", "reason"),
        ({"value": 1, "reason": 5}, "bad_field", "reason"),
        ({"value": None, "reason": "because"}, "bad_field", "reason"),
        ({"value": 1, "turn": "a b"}, "bad_field", "turn"),
    ],
)
def test_bad_input_is_refused(talk, given, code, field):
    with pytest.raises(BadInput) as raised:
        rate(**{"turn": "t1", **given})
    assert (raised.value.code, raised.value.field) == (code, field)
    assert stored() == []


def test_the_longest_reason_is_stored(talk):
    rate(turn="t1", value=1, reason="😀" * 1_000)
    assert stored() == [("t1", 1, "😀" * 1_000)]


def test_another_user_finds_neither_session_nor_turn(talk):
    ann, bob = make_user(), make_user()
    own = {"session_key": "talk", "by": Actor.user(ann)}
    make_session(owner=ann)
    run("t1", at=own)
    with pytest.raises(NotFound) as raised:
        set_feedback(session_key="talk", by=Actor.user(bob), turn="t1", value=1)
    assert raised.value.code == "not_found"
    with pytest.raises(NotFound):
        set_feedback(session_key="talk", by=Actor.visitor("x"), turn="t1", value=1)
    set_feedback(**own, turn="t1", value=-1)
    assert list(Feedback.objects.values_list("session__owner", "value")) == [(ann.pk, -1)]
    assert shown() == {}  # the session of the server's scope has the same key and turn


@pytest.mark.parametrize("kind", ["operator", "command"])
def test_operators_cannot_give_feedback_for_a_person(talk, kind):
    with pytest.raises(TypeError, match="cannot give feedback"):
        set_feedback(**{**TALK, "by": Actor(kind, "1", "olga")}, turn="t1", value=1)


@pytest.mark.django_db(transaction=True)
def test_concurrent_feedback_on_a_turn_is_stored_once():
    make_session()
    run("t1")
    before, _ = revisions()
    concurrently(*[partial(rate, turn="t1", value=value) for value in (1, -1) * 3])
    [(_, value, _)] = stored()
    assert shown() == {4: value}
    assert before < revisions()[0] == Message.stored.get(seq=4).revision
    assert list(check_integrity()) == []


def test_the_database_refuses_a_second_feedback_and_other_values(talk):
    rate(turn="t1", value=1)
    for columns in ({"user_seq": 1, "value": 1}, {"user_seq": 5, "value": 0}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Feedback.objects.create(session=talk, turn="t1", **columns)


# Removal


def vacuum_all(settings) -> None:
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}
    vacuum()


@pytest.mark.parametrize("remove", ["trim", "clear"])
def test_the_counts_survive_a_removal_and_its_vacuum(talk, settings, remove):
    rate(turn="t1", value=1, reason="It helped.")
    rate(turn="t2", value=-1, reason="Wrong.")
    if remove == "trim":
        trim_session(**TALK, keep_turns=1, reason="old")
    else:
        clear_session(**TALK, reason="old")
    assert stored() == [("t1", 1, "It helped."), ("t2", -1, "Wrong.")]
    vacuum_all(settings)
    kept = "Wrong." if remove == "trim" else ""
    assert stored() == [("t1", 1, ""), ("t2", -1, kept)]
    assert talk.feedback.all().counts() == {1: 1, -1: 1}
    assert shown() == ({8: -1} if remove == "trim" else {})
    assert list(check_integrity()) == []


def test_a_turn_that_has_the_client_id_of_a_vacuumed_one_is_rated_separately(talk, settings):
    rate(turn="t1", value=1)
    clear_session(**TALK, reason="old")
    vacuum_all(settings)
    run("t1")
    rate(turn="t1", value=-1)
    assert talk.feedback.all().counts() == {1: 1, -1: 1}
    assert shown() == {12: -1}
    assert list(check_integrity()) == []


def test_restored_rows_show_their_feedback_again(talk):
    rate(turn="t1", value=1, reason="It helped.")
    entry = clear_session(**TALK, reason="old")
    restore_session(entry_pk=entry.pk, by=TALK["by"], scope=TALK["scope"], reason="mistake")
    assert shown() == {4: 1}
    assert stored() == [("t1", 1, "It helped.")]


def test_the_vacuum_of_a_purged_session_deletes_its_feedback(talk, settings):
    rate(turn="t1", value=1)
    purge_session(**TALK, reason="gone")
    assert stored() == [("t1", 1, "")]
    vacuum_all(settings)
    assert stored() == []
    assert not Session.objects.exists()


def test_an_erasure_deletes_the_feedback():
    ann = make_user()
    own = {"session_key": "talk", "by": Actor.user(ann)}
    session = make_session(owner=ann)
    run("t1", at=own)
    set_feedback(**own, turn="t1", value=1, reason="I am Ann.")
    assert erase_person(by=TALK["by"], scope=session.scope, reason="asked").sessions == 1
    assert stored() == []


@pytest.mark.parametrize("seq", [1, 3, 4])
def test_a_redaction_in_the_turn_deletes_the_reason(talk, seq):
    for turn in ("t1", "t2"):
        rate(turn=turn, value=1, reason="It said secret.")
    redact_message(**TALK, seq=seq, reason="private")
    assert stored() == [("t1", 1, ""), ("t2", 1, "It said secret.")]
    assert shown() == {4: 1, 8: 1}


def test_the_redaction_of_a_turn_deletes_the_reason_and_is_recorded(talk):
    for turn in ("t1", "t2"):
        rate(turn=turn, value=1, reason="It said secret.")
    assert redact_turn(**TALK, turn="t1", reason="private").counts == {"turns": 1}
    assert stored() == [("t1", 1, ""), ("t2", 1, "It said secret.")]
    assert redact_turn(**TALK, turn="t1", reason="again") is None
    assert AuditEntry.objects.filter(action="redact").count() == 1


# Integrity


def codes() -> list[str]:
    return [finding.code for finding in check_integrity()]


def test_a_reply_that_shows_other_feedback_is_found_and_repaired(talk):
    rate(turn="t1", value=1)
    Message.stored.filter(seq=4).update(feedback=-1)
    Message.stored.filter(seq=8).update(feedback=1)
    assert codes() == ["reply"]
    before, _ = revisions()
    [found] = check_integrity(repair_by=TALK["by"])
    assert found.is_fixed
    assert shown() == {4: 1}
    assert revisions() == (before + 1, before + 1)
    assert set(Message.stored.filter(seq__in=(4, 8)).values_list("revision", flat=True)) == {
        before + 1
    }
    assert codes() == []


@pytest.mark.slow
@pytest.mark.regression
def test_the_number_of_replies_does_not_change_the_number_of_statements_of_a_repair(talk):
    run("t3")
    list(check_integrity(repair_by=TALK["by"]))  # the first one also creates its record
    numbers = []
    for turns in ({"t1": 1, "t2": -1}, {"t1": 1, "t2": -1, "t3": 1}):
        for turn, value in turns.items():
            rate(turn=turn, value=value)
        Message.stored.update(feedback=None)
        with CaptureQueriesContext(connection) as queries:
            list(check_integrity(repair_by=TALK["by"]))
        numbers.append(len(queries))
        assert shown() == {4 * int(turn[1]): value for turn, value in turns.items()}
    assert numbers[0] == numbers[1]


def test_a_missing_copy_is_repaired_by_the_next_feedback_too(talk):
    rate(turn="t1", value=1)
    Message.stored.filter(seq=4).update(feedback=None)
    rate(turn="t1", value=1)
    assert shown() == {4: 1}


@pytest.mark.parametrize("damage", [{"turn": "t9"}, {"turn": "T1"}, {"user_seq": 2}])
def test_feedback_on_an_unknown_turn_is_found(talk, damage):
    rate(turn="t1", value=1)
    Feedback.objects.update(**damage)
    assert "feedback" in codes()
    assert "feedback" in [found.code for found in check_integrity(repair_by=TALK["by"])]
    assert Feedback.objects.count() == 1
