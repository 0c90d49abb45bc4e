"""The integrity check finds each kind of damage, and repairs what rows and turns imply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from chatmemory.access.actors import importing_scope
from chatmemory.codec import dump_json
from chatmemory.errors import Busy, MemoryUnavailable, NotFound
from chatmemory.models import AuditEntry, Maintenance, Message, Session, Turn
from chatmemory.services import (
    SERVER,
    Actor,
    admit_turn,
    append_messages,
    clear_session,
    purge_session,
    read_history,
    trim_session,
)
from chatmemory.services.integrity import findings
from chatmemory.services.integrity import rows as contents
from chatmemory.services.integrity import sessions as integrity
from chatmemory.services.integrity.findings import Finding
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.floor import mark_removed
from chatmemory.services.turns.claims import Claim, claim_next
from chatmemory.services.turns.progress import add_rows, finish_turn, save_partial, start_turn
from chatmemory.services.turns.recovery import recover_overdue_turn
from chatmemory.services.turns.unstored import read_unstored
from tests.factories import BY, TALK, make_messages, make_session, make_user
from tests.locking import concurrently, held

pytestmark = [pytest.mark.django_db, pytest.mark.database]
commits = pytest.mark.django_db(transaction=True)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
REPLY: dict[str, object] = {"role": "assistant", "content": "done"}


def talk(*texts: str) -> Session:
    """Create a session with these messages, by default `a` to `d`, in two batches."""
    session = make_session()
    messages = make_messages(*(texts or "abcd"))
    append_messages(**TALK, messages=messages[:2])
    if messages[2:]:
        append_messages(**TALK, messages=messages[2:])
    return session


def run(client_id: str = "run") -> Claim:
    """Start a turn, and return its claim."""
    claim = admit_turn(**TALK, client_id=client_id, content="hi", owner="me").claim
    assert claim is not None
    start_turn(claim=claim)
    return claim


def calls(*ids: str) -> dict[str, object]:
    tool_calls = [{"name": "look", "args": {}, "id": call_id} for call_id in ids]
    return {"role": "assistant", "content": "", "tool_calls": tool_calls}


def result(call_id: str) -> dict[str, object]:
    return {"role": "tool", "content": "found", "tool_call_id": call_id}


def append(*messages: dict[str, object]) -> None:
    append_messages(**TALK, messages=messages)


def rows(*seqs: int) -> Any:
    return Message.stored.filter(seq__in=seqs)


def copy(seq: int, **columns: Any) -> None:
    """Insert a copy of a row with other columns."""
    row = rows(seq).get()
    row.pk, row.client_id, row.batch = None, None, None
    for name, value in columns.items():
        setattr(row, name, value)
    row.save(force_insert=True)


def found(**options: Any) -> list[str]:
    return [finding.code for finding in check_integrity(**options)]


def fix(**options: Any) -> list[Finding]:
    return list(check_integrity(repair_by=BY, **options))


def state() -> dict[str, Any]:
    return dict(Session.objects.values().get())


def history_of_everything() -> None:
    """Write with each service, also with interruptions."""
    append(*make_messages("a", "b", "c"), calls("x", "y"), result("y"), result("x"), REPLY)
    claim = run("one")
    add_rows(claim=claim, messages=[calls("x"), *make_messages("inner"), result("x")], step=None)
    finish_turn(claim=claim, status="complete", message=REPLY)
    claim = run("two")
    add_rows(claim=claim, messages=[calls("x", "z")], step=None)
    save_partial(claim=claim, text="so far", step=1)
    Turn.objects.filter(client_id="two").update(lease_until=LONG_AGO)
    recover_overdue_turn(claim.session_pk)
    trim_session(**TALK, keep_last=2, reason="")
    claim = run("three")
    add_rows(claim=claim, messages=[calls("x")], step=None)


def test_writes_of_services_are_no_damage():
    session = make_session()
    history_of_everything()
    assert found() == []
    clear_session(**TALK, reason="")  # while a tool runs
    assert found() == []
    admit_turn(**TALK, client_id="waits", content="hi")
    assert found() == []
    claim_next(session_pk=session.pk, owner="me")
    assert found() == []
    Turn.objects.filter(client_id="waits").update(lease_until=LONG_AGO)
    recover_overdue_turn(session.pk)  # requeued: it waits, and its session names it
    assert found() == []
    purge_session(**TALK, reason="")
    assert found() == []
    assert fix() == []
    assert not AuditEntry.objects.filter(action="repair").exists()


def test_a_call_without_a_turn_may_still_get_its_result():
    talk()
    append(calls("x"))
    assert found() == []
    append(result("x"))
    assert found() == []


def test_rows_that_were_vacuumed_are_no_gap():
    talk()
    trim_session(**TALK, keep_last=2, reason="")
    rows(1, 2).delete()
    Session.objects.update(stored_from=3)
    assert found() == []
    clear_session(**TALK, reason="")
    rows(3, 4).delete()
    Session.objects.update(stored_from=5)
    assert found() == []


def test_a_turn_whose_rows_were_vacuumed_is_no_damage():
    talk()
    finish_turn(claim=run(), status="complete", message=REPLY)
    clear_session(**TALK, reason="")
    Message.stored.all().delete()
    Session.objects.update(stored_from=7)
    assert found() == []


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ([2], [(2, 2)]),
        ([3], [(3, 3)]),
        ([2, 3], [(2, 3)]),
        ([4], [(4, 4)]),
        ([1], [(1, 1)]),
        ([1, 4], [(1, 1), (4, 4)]),
        ([1, 2, 3, 4], [(1, 4)]),
    ],
)
def test_a_gap_is_found_and_not_repaired(missing, expected):
    talk()
    rows(*missing).delete()
    before = state()
    for _ in range(2):
        gaps = fix()
        assert {finding.code for finding in gaps} == {"gap"}
        assert [(gap.from_seq, gap.to_seq) for gap in gaps] == expected
        assert not any(gap.is_fixable for gap in gaps)
    assert state() == before


def test_at_most_max_listed_findings_of_a_code_are_listed(monkeypatch):
    for module in (findings, integrity):
        monkeypatch.setattr(module, "MAX_LISTED", 3)
    make_session()
    append(*make_messages(*"abcdefghijkl"))
    rows(2, 4, 6, 8, 10).delete()
    gaps = list(check_integrity())
    assert [gap.from_seq for gap in gaps] == [2, 4, 6, None]
    assert "more" in gaps[-1].sentence


def test_detached_rows_below_stored_from_are_found():
    talk("a", "b", "c", "d", "e", "f")
    trim_session(**TALK, keep_last=2, reason="")
    rows(2, 3, 4).delete()
    Session.objects.update(stored_from=5)
    assert found() == found(repair_by=BY) == ["below"]


@commits
def test_a_duplicate_number_is_found(without_unique_seqs):
    talk()
    copy(2)
    [double] = fix()
    assert (double.code, double.from_seq, double.is_fixable) == ("double", 2, False)


@commits
def test_a_duplicate_does_not_hide_a_gap(without_unique_seqs):
    talk()
    copy(2)
    rows(3).delete()
    assert found() == ["double", "gap"]


@pytest.fixture
def without_unique_seqs(transactional_db: None) -> Iterator[None]:
    """The table of messages without its unique constraint."""
    meta = Message._meta
    all_constraints = meta.constraints
    unique = next(each for each in all_constraints if each.name == "chatmemory_message_seq")
    with connection.schema_editor() as editor:
        if connection.vendor == "mysql":  # the foreign key uses the same index
            editor.execute("CREATE INDEX for_tests ON chatmemory_message (session_id)")
        meta.constraints = [each for each in all_constraints if each is not unique]
        editor.remove_constraint(Message, unique)
    try:
        yield
    finally:
        Message.stored.all().delete()
        meta.constraints = all_constraints
        with connection.schema_editor() as editor:
            editor.add_constraint(Message, unique)
            if connection.vendor == "mysql":
                editor.execute("DROP INDEX for_tests ON chatmemory_message")


@pytest.mark.parametrize(
    "columns", [{"batch": 1}, {"batch": 3}, {"batch": 4}, {"batch": None}, {"batch": 0}]
)
@pytest.mark.parametrize("seq", [1, 3])
def test_a_batch_of_another_length_is_found(seq, columns):
    talk()
    rows(seq).update(**columns)
    [finding] = fix()
    assert (finding.code, finding.from_seq, finding.is_fixable) == ("batch", seq, False)


def test_a_turn_without_its_users_row_is_found():
    make_session()
    finish_turn(claim=run(), status="complete", message=REPLY)
    rows(1).update(role="system")
    [finding] = fix()
    assert (finding.code, finding.from_seq) == ("user_row", 1)


def test_a_turn_with_a_wrong_user_seq_is_found():
    make_session()
    finish_turn(claim=run(), status="complete", message=REPLY)
    Turn.objects.update(user_seq=7)
    assert found() == ["user_row"]


def test_a_running_turn_without_a_user_seq_is_found():
    make_session()
    run()
    Turn.objects.update(user_seq=None)
    assert found() == ["user_row"]


@pytest.mark.parametrize(
    "columns", [{"removed_at": None}, {"removed_scope": ""}], ids=["not purged", "from nowhere"]
)
def test_an_incomplete_purge_is_found(columns):
    talk()
    purge_session(**TALK, reason="")
    Session.objects.update(**columns)
    assert found() == found(repair_by=BY) == ["removed"]


@contextmanager
def without_foreign_keys() -> Iterator[None]:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            yield
            cursor.execute("SET session_replication_role = DEFAULT")
    else:
        with connection.constraint_checks_disabled():
            yield


@commits
def test_rows_turns_and_tags_without_a_session_are_found():
    session = talk()
    finish_turn(claim=run(), status="complete", message=REPLY)
    with without_foreign_keys(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM chatmemory_session")
        orphans = fix()
        assert found(session_pk=session.pk) == ["orphans", "orphans"]
        assert found(scope=SERVER) == []
        Message.stored.all().delete()
        Turn.objects.all().delete()
    assert [finding.sentence for finding in orphans] == [
        "6 messages belong to a session that does not exist.",
        "1 turns belong to a session that does not exist.",
    ]
    assert {(finding.code, finding.session_pk) for finding in orphans} == {("orphans", session.pk)}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([calls("x"), *make_messages("next")], [("call", 5)]),
        ([calls("x", "y"), result("y"), *make_messages("next")], [("call", 5)]),
        ([result("x")], [("result", 5)]),
        ([*make_messages("next"), result("x"), *make_messages("next")], [("result", 6)]),
        ([calls("x"), *make_messages("next"), result("x")], [("call", 5)]),
        ([calls("x"), result("x"), result("x")], []),
        ([calls("x"), result("x"), calls("x"), *make_messages("next")], [("call", 7)]),
        ([{"role": "tool", "content": "of nothing"}], []),
        ([{**result("x"), "kind": "function"}], []),
    ],
)
def test_a_call_without_a_result_and_a_result_without_a_call_are_found(messages, expected):
    talk()
    append(*messages)
    pairs = fix()
    assert [(pair.code, pair.from_seq) for pair in pairs] == expected
    assert not any(pair.is_fixable for pair in pairs)


@pytest.mark.regression
@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_call_in_an_interrupted_message_needs_no_result(status):
    make_session()
    claim = run()
    finish_turn(claim=claim, status=status, message=calls("x"))
    append(*make_messages("next"))
    assert found() == []


def test_a_call_that_an_ended_turn_left_open_is_found():
    make_session()
    claim = run()
    add_rows(claim=claim, messages=[calls("x")], step=None)
    assert found() == []
    finish_turn(claim=claim, status="complete", message=REPLY)
    assert found() == []
    rows(3).update(role="assistant", body=None)  # the result that was added
    assert found() == ["call"]


def test_a_user_row_within_a_run_separates_no_call_from_its_result():
    make_session()
    claim = run()
    add_rows(claim=claim, messages=[calls("x"), *make_messages("inner"), result("x")], step=None)
    finish_turn(claim=claim, status="complete", message=REPLY)
    assert found() == []


def test_calls_below_the_floor_are_not_checked():
    make_session()
    append(calls("x"), *make_messages("a", "b"))
    assert found() == ["call"]
    trim_session(**TALK, keep_last=2, reason="")
    assert found() == []


def test_a_turn_with_a_redacted_row_has_no_findings_about_calls():
    talk()
    append(calls("x"), result("x"), calls("y"), *make_messages("a"))
    assert found() == ["call"]
    rows(5).update(redacted=True, body=None, text="")
    assert found() == []


def test_calls_and_results_are_matched_across_pages(monkeypatch):
    monkeypatch.setattr(contents, "PAGE_ROWS", 3)
    make_session()
    append(
        *make_messages("a"), *(calls(str(n)) for n in range(8)), *(result(str(n)) for n in range(8))
    )
    assert found() == []
    append(
        *make_messages("b"), *(calls(str(n)) for n in range(8)), *(result(str(n)) for n in range(7))
    )
    append(*make_messages("c"))
    assert found() == ["call"]


def plant_counter(**columns: Any) -> Callable[[], None]:
    def plant() -> None:
        talk()
        Session.objects.update(**columns)

    return plant


def plant_missing_hidden_row() -> None:
    talk()
    trim_session(**TALK, keep_last=2, reason="")
    rows(1).delete()


def plant_undeleted_hidden_rows() -> None:
    talk()
    trim_session(**TALK, keep_last=2, reason="")
    Session.objects.update(stored_from=3)


def plant_tokens_of_vacuumed() -> None:
    talk()
    trim_session(**TALK, keep_last=2, reason="")
    rows(1, 2).delete()
    Session.objects.update(stored_from=3, tokens=1)


def plant_ended_turn() -> None:
    talk()
    run()
    rows(5).delete()
    Session.objects.update(last_seq=4, tokens=F("tokens") - 4)
    Turn.objects.update(status="complete", user_seq=None)


def plant_unpurged_scope() -> None:
    talk()
    Session.objects.update(removed_at=LONG_AGO, first_seq=5)


DAMAGE = {
    "last_seq": (plant_counter(last_seq=2), {"last_seq": 4}),
    "stored_from": (plant_missing_hidden_row, {"stored_from": 2}),
    "stored_from, too high": (plant_undeleted_hidden_rows, {"stored_from": 1}),
    "tokens": (plant_counter(tokens=1), {"tokens": 16}),
    "tokens, too many": (plant_counter(tokens=99), {"tokens": 16}),
    "tokens, of what is left": (plant_tokens_of_vacuumed, {"tokens": 8}),
    "waiting": (plant_counter(waiting=2), {"waiting": 0}),
    "waiting, too few": (plant_counter(waiting=-1), {"waiting": 0}),
    "running": (plant_counter(running="nobody"), {"running": None}),
    "running, but ended": (plant_ended_turn, {"running": None}),
    "last_message_at": (plant_counter(last_message_at=None), {}),
    "last_message_at, wrong": (plant_counter(last_message_at=LONG_AGO), {}),
    "scope": (plant_unpurged_scope, {"removed_scope": SERVER}),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_wrong_counter_is_corrected(name):
    plant, expected = DAMAGE[name]
    plant()
    before = state()
    code = name.partition(",")[0]
    codes = [code, "removed_scope"] if code == "scope" else [code]
    assert found() == codes
    assert state() == before
    repaired = fix()
    assert [finding.code for finding in repaired] == codes
    assert all(finding.is_fixed for finding in repaired)
    after = state()
    assert after.items() >= expected.items()
    assert after["revision"] == before["revision"] + 1
    assert fix() == []
    entry = AuditEntry.objects.get(action="repair")
    assert (entry.session_pk, entry.actor_id) == (before["id"], BY.id)
    assert entry.counts == dict.fromkeys(codes, 1)


def test_last_message_at_is_the_time_of_the_newest_row():
    talk()
    Session.objects.update(last_message_at=None)
    fix()
    newest = rows(4).get().created_at
    assert state()["last_message_at"] == newest
    Session.objects.update(last_message_at=newest + timedelta(seconds=30))
    assert found() == []


def test_the_repair_of_a_purged_session_frees_its_key():
    plant_unpurged_scope()
    fix()
    after = state()
    assert after["scope"] == f"removed:{after['id']}"
    append_messages(**TALK, messages=make_messages("new"), create=True)


def test_after_the_repair_of_the_counter_an_append_is_stored_again():
    talk()
    Session.objects.update(last_seq=2)
    fix()
    append(*make_messages("e"))
    assert [row.seq for row in read_history(**TALK).rows] == [1, 2, 3, 4, 5]


def test_a_write_that_a_damaged_counter_refuses_fails_visibly(caplog):
    session = talk()
    claim = run()
    Session.objects.update(last_seq=2)
    with pytest.raises(MemoryUnavailable, match="chatmemory_check"):
        add_rows(claim=claim, messages=[REPLY], step=None)
    with pytest.raises(MemoryUnavailable, match="chatmemory_check"):
        finish_turn(claim=claim, status="complete", message=REPLY)
    assert f"chatmemory_check --session {session.pk} --fix" in caplog.text
    fix()
    assert add_rows(claim=claim, messages=[REPLY], step=None)
    assert finish_turn(claim=claim, status="complete", message=REPLY) is not None
    assert [row.seq for row in read_history(**TALK).rows] == [*range(1, 8)]


def test_an_append_to_a_damaged_session_names_the_remedy(caplog):
    session = talk()
    Session.objects.update(last_seq=2)
    with pytest.raises(MemoryUnavailable, match="chatmemory_check"):
        append(*make_messages("e"))
    assert f"chatmemory_check --session {session.pk} --fix" in caplog.text


def test_a_turn_that_waits_in_a_damaged_session_keeps_its_text():
    session = talk()
    admit_turn(**TALK, client_id="waits", content="words")
    Session.objects.update(last_seq=2)
    with pytest.raises(MemoryUnavailable, match="chatmemory_check"):
        claim_next(session_pk=session.pk, owner="me")
    assert Turn.objects.get().asked_text == "words"
    fix()
    assert claim_next(session_pk=session.pk, owner="me") is not None
    assert rows(5).get().text == "words"


def test_a_low_counter_and_a_gap_are_different_findings():
    talk()
    rows(3).delete()
    Session.objects.update(last_seq=2)
    assert [finding.code for finding in fix()] == ["last_seq", "gap"]
    assert found() == ["gap"]


def test_a_revision_below_that_of_a_row_is_corrected():
    talk()
    rows(2).update(revision=7)
    assert [finding.code for finding in fix()] == ["revision", "rows_revision"]
    assert (state()["revision"], state()["rows_revision"]) == (8, 7)
    assert found() == []


def test_a_run_whose_turn_was_repaired_cannot_write():
    talk()
    claim = run()
    Turn.objects.update(status="failed")
    assert [finding.code for finding in fix()] == ["running"]
    assert not add_rows(claim=claim, messages=[REPLY], step=None)
    Session.objects.update(running="run")
    assert not add_rows(claim=claim, messages=[REPLY], step=None)  # the fence was raised, too


@pytest.mark.parametrize("lease_until", [LONG_AGO, None])
def test_an_overdue_turn_is_ended(lease_until):
    make_session()
    claim = run()
    add_rows(claim=claim, messages=[calls("x")], step=None)
    save_partial(claim=claim, text="so far", step=1)
    Turn.objects.update(lease_until=lease_until)
    assert found() == ["overdue"]
    assert [finding.is_fixed for finding in fix()] == [True]
    assert found() == []
    assert rows(4).get().text == "so far"
    assert AuditEntry.objects.get().counts == {"overdue": 1}


def test_an_overdue_turn_is_ended_although_the_counter_is_damaged():
    talk()
    run()
    Turn.objects.update(lease_until=LONG_AGO)
    Session.objects.update(last_seq=2)
    assert {finding.code for finding in fix()} == {"last_seq", "overdue"}
    assert found() == []
    assert state()["last_seq"] == 6


def test_a_turn_that_the_session_does_not_name_is_ended_with_its_text():
    make_session()
    claim = run()
    save_partial(claim=claim, text="so far", step=1)
    Session.objects.update(running=None)
    assert found() == ["stray_turn"]
    fix()
    assert found() == []
    assert rows(2).get().text == "so far"
    assert Turn.objects.get().status == "interrupted"
    assert not add_rows(claim=claim, messages=[REPLY], step=None)


def test_an_unstarted_turn_that_the_session_does_not_name_is_requeued():
    session = make_session()
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    Session.objects.update(running=None)
    fix()
    assert found() == []
    assert claim_next(session_pk=session.pk, owner="me") is not None


def test_a_turn_followed_by_other_rows_gets_no_row_and_keeps_its_text():
    make_session()
    claim = run()
    save_partial(claim=claim, text="so far", step=1)
    Session.objects.update(running=None)
    append(*make_messages("next"))
    assert found() == ["stray_turn"]
    fix()
    assert found() == []
    turn = Turn.objects.get()
    assert (turn.status, turn.partial, turn.lease_until) == ("interrupted", "so far", None)
    assert Message.stored.count() == 2
    assert [one.turn for one in read_unstored(session=turn.session)] == [turn]


def test_a_turn_of_an_older_epoch_is_ended_without_its_text():
    make_session()
    claim = run()
    save_partial(claim=claim, text="so far", step=1)
    clear_session(**TALK, reason="")
    Turn.objects.update(status="running", partial="so far")
    fix()
    assert found() == []
    assert (Turn.objects.get().status, Turn.objects.get().partial) == ("interrupted", "")
    assert Message.stored.count() == 1


@pytest.mark.parametrize("columns", [{"body": "{"}, {"body": '{"role":"user"}'}, {"role": "root"}])
def test_an_unreadable_row_is_marked(columns):
    talk()
    rows(2).update(**columns)
    before = state()
    [finding] = check_integrity()
    assert (finding.code, finding.from_seq) == ("unreadable", 2)
    assert state() == before
    fix()
    row = rows(2).get()
    assert (row.quarantined, row.revision) == (True, before["revision"] + 1)
    assert state()["revision"] == state()["rows_revision"] == row.revision
    assert fix() == []
    assert AuditEntry.objects.get().counts == {"unreadable": 1}
    [_, public, *_] = (row.public() for row in read_history(**TALK).rows)
    assert (public["quarantined"], public["text"]) == (True, "b")


def test_a_row_that_is_readable_again_loses_its_mark():
    talk()
    rows(2).update(quarantined=True)
    assert found() == ["readable"]
    fix()
    assert not rows(2).get().quarantined
    assert found() == []


def test_no_reader_sees_steps_of_a_row_that_is_marked_as_unreadable():
    talk()
    call = {"id": "c1", "name": "pay", "args": {"card": "4929"}}
    body = {"role": "assistant", "content": "b", "tool_calls": [call]}
    rows(2).update(body=dump_json(body))
    assert read_history(**TALK).rows[1].public()["calls"]
    rows(2).update(quarantined=True)
    assert "calls" not in read_history(**TALK).rows[1].public()


def test_a_hidden_unreadable_row_is_marked_too():
    talk()
    clear_session(**TALK, reason="")
    rows(2).update(body="{")
    assert [finding.code for finding in fix()] == ["unreadable"]


def test_findings_contain_no_message_content():
    talk("canary", "canary")
    append(calls("x"), *make_messages("canary", "canary", "canary"))
    rows(1).update(body="canary {")
    rows(5).delete()
    Session.objects.update(last_seq=2, running="nobody")
    assert "canary" not in repr(fix())
    assert "canary" not in repr(list(AuditEntry.objects.values()))


def test_the_first_check_locks_nothing():
    talk()
    history_of_everything()
    with CaptureQueriesContext(connection) as queries:
        assert found() == []
    of_record = Maintenance._meta.db_table
    sent = "\n".join(query["sql"] for query in queries if of_record not in query["sql"])
    assert "UPDATE" not in sent


@commits
def test_damage_that_the_recheck_does_not_confirm_is_no_finding():
    """As when a concurrent vacuum ends the contradiction between check and recheck."""
    talk()
    trim_session(**TALK, keep_last=2, reason="")
    rows(1).delete()
    looks = []

    def undo(execute, sql, params, many, context):
        if "LEAD(" not in sql and "chatmemory_session" in sql and "COUNT(" in sql:
            looks.append(sql)
        answer = execute(sql, params, many, context)
        if len(looks) == 2:  # both statements of the first check were executed
            looks.append("undone")
            Session.objects.update(stored_from=2)
        return answer

    with connection.execute_wrapper(undo):
        assert found() == []
    assert len(looks) > 3


@commits
def test_a_locked_session_is_reported_and_the_others_are_checked(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "LOCK_TIMEOUT": 0.1}
    if connection.vendor == "sqlite":
        pytest.skip("one lock for all sessions")
    session = talk()
    Session.objects.update(waiting=3)
    make_session("other", waiting=3)
    with held(session):
        assert found() == ["unchecked", "waiting"]


@commits
@pytest.mark.slow
def test_concurrent_writers_are_no_damage():
    sessions = [make_session(f"s{n}") for n in range(3)]
    is_over = []

    def write(number: int) -> None:
        at = {**TALK, "session_key": f"s{number % 3}"}
        for n in range(25):
            claim = None
            while claim is None:
                try:
                    claim = admit_turn(
                        **at, client_id=f"{number}.{n}", content="hi", owner="me"
                    ).claim
                except (Busy, MemoryUnavailable):
                    continue
            start_turn(claim=claim)
            add_rows(claim=claim, messages=[calls("x")], step=None)
            add_rows(claim=claim, messages=[result("x")], step=None)
            finish_turn(claim=claim, status="complete", message=REPLY)
            if n % 5 == 0:
                trim_session(**at, keep_last=6, reason="")
        is_over.append(number)

    def check() -> int:
        rounds = 0
        while len(is_over) < 3:
            assert found() == []
            rounds += 1
        return rounds

    *_, rounds = concurrently(*(lambda n=n: write(n) for n in range(3)), check)
    assert rounds > 0
    assert found() == []
    assert {session.last_seq for session in Session.objects.all()} == {100}
    assert len(sessions) == 3


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_partially_imported_session_is_no_damage(is_purged):
    session = make_session(scope=importing_scope(SERVER))
    append_messages(**TALK | {"scope": session.scope}, messages=make_messages("one", "two"))
    Session.objects.update(tokens=0, last_message_at=None)
    if is_purged:
        with transaction.atomic():
            mark_removed(session)
    assert found() == []
    assert found(session_pk=session.pk) == []


def test_a_check_can_be_limited_to_a_session_or_scope():
    ann = make_user()
    one, two = make_session("one"), make_session("two", owner=ann)
    three = make_session("three", owner=ann)
    purge_session(session_key="three", by=Actor.user(ann), reason="")
    Session.objects.update(waiting=1)
    assert [finding.session_pk for finding in check_integrity()] == [one.pk, two.pk, three.pk]
    assert [f.session_pk for f in check_integrity(session_pk=two.pk)] == [two.pk]
    assert [f.session_pk for f in check_integrity(scope=two.scope)] == [two.pk, three.pk]


def test_an_empty_scope_has_no_sessions():
    make_session()
    Session.objects.update(waiting=1)
    assert list(check_integrity(scope="")) == []


def test_a_check_of_a_missing_session_is_not_found():
    with pytest.raises(NotFound):
        found(session_pk=404)


def test_the_statements_grow_with_the_batches_and_not_with_the_sessions():
    found()  # its record exists from now on: two statements store it, and one reads the tables
    counts = []
    for number in range(15):
        make_session(f"s{number}")
        append_messages(**{**TALK, "session_key": f"s{number}"}, messages=make_messages("a", "b"))
        if number % 5 == 4:
            with CaptureQueriesContext(connection) as queries:
                assert found(batch_size=5) == []
            counts.append(len(queries))
    # One of each batch is for the threads of graphs.
    assert counts == [3 + 16, 3 + 24, 3 + 32]


def test_mariadb_reads_each_row_of_a_session_a_few_times():
    if connection.vendor != "mysql":
        pytest.skip("only for MariaDB")
    reads = []
    for number, length in enumerate((100, 400)):
        append_messages(
            session_key=f"s{number}", by=BY, scope=SERVER, create=True, messages=make_messages("a")
        )
        session = Session.objects.get(key=f"s{number}")
        row = Message.stored.get(session=session)
        Message.stored.bulk_create(copies_of(row, length))
        totals = {"last_seq": length, "tokens": length * row.tokens}
        Session.objects.filter(pk=session.pk).update(**totals)
        before = reads_of_rows()
        assert found(session_pk=session.pk) == []
        reads.append(reads_of_rows() - before)
    assert reads[1] < 6 * reads[0], reads


def copies_of(row: Message, length: int) -> list[Message]:
    """Return the rows from 2 to `length`, each a batch of its own like this row."""
    copies = []
    for seq in range(2, length + 1):
        columns = {field.attname: getattr(row, field.attname) for field in row._meta.fields}
        copies.append(Message(**columns | {"id": None, "seq": seq, "client_id": None, "batch": 1}))
    return copies


def reads_of_rows() -> int:
    """Return how many rows of tables and indexes the connection has read, also in vain."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler%'")
        status = dict(cursor.fetchall())
    return sum(
        int(number)
        for name, number in status.items()
        if name.startswith("Handler_read") or name == "Handler_icp_attempts"
    )


def check(capsys: Any, **options: Any) -> list[str]:
    call_command("chatmemory_check", **options)
    return str(capsys.readouterr().out).splitlines()


@pytest.mark.parametrize("pk", [2**63, -1, 0])
def test_a_check_of_an_impossible_primary_key_is_not_found(pk):
    with pytest.raises(NotFound):
        list(check_integrity(session_pk=pk))


def test_the_command_finds_nothing(capsys):
    talk()
    assert check(capsys) == ["nothing found"]


def test_the_command_repairs_and_prints_what_is_left(capsys):
    session = talk()
    rows(2).delete()
    Session.objects.update(waiting=2)
    with pytest.raises(CommandError, match="2 findings") as failed:
        check(capsys)
    assert failed.value.returncode == 1
    assert capsys.readouterr().out.splitlines() == [
        f"conversation {session.pk}: waiting is 2, but must be 0. (--fix repairs it)",
        f"conversation {session.pk}: Row 2 is missing.",
        "gap: 1 found, 0 repaired",
        "waiting: 1 found, 0 repaired",
    ]
    with pytest.raises(CommandError, match="1 finding"):
        check(capsys, fix=True)
    assert "waiting is 2, but must be 0. (repaired)" in capsys.readouterr().out
    assert AuditEntry.objects.get().actor_label == "chatmemory_check"


def test_the_command_succeeds_if_it_repaired_all_damage(capsys):
    talk()
    Session.objects.update(waiting=2)
    assert check(capsys, fix=True)[-1] == "waiting: 1 found, 1 repaired"
    assert check(capsys, fix=True) == ["nothing found"]


def test_the_command_prints_json(capsys):
    session = talk()
    Session.objects.update(waiting=2)
    finding, summary = map(json.loads, check(capsys, fix=True, json=True))
    assert finding == {
        "code": "waiting",
        "session_pk": session.pk,
        "sentence": "waiting is 2, but must be 0.",
        "from_seq": None,
        "to_seq": None,
        "is_fixable": True,
        "is_fixed": True,
    }
    assert summary == {"found": {"waiting": 1}, "fixed": {"waiting": 1}}


def test_the_command_accepts_a_session_and_a_scope(capsys):
    session = talk()
    Session.objects.update(waiting=2)
    assert check(capsys, scope="user:1") == ["nothing found"]
    with pytest.raises(CommandError, match="--scope must not be empty"):
        check(capsys, scope="")
    with pytest.raises(CommandError, match="Session not found"):
        check(capsys, session=session.pk + 1)
    with pytest.raises(CommandError, match="1 finding"):
        check(capsys, session=session.pk)
