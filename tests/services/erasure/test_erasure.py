"""Erasure: all data of a person is deleted immediately, with a receipt."""

from __future__ import annotations

from functools import partial
from io import StringIO
from threading import Event
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from chatmemory.access.actors import importing_scope
from chatmemory.database.batches import in_batches
from chatmemory.errors import BadInput, NotFound
from chatmemory.models import (
    AuditEntry,
    Feedback,
    Message,
    Session,
    SessionNote,
    SessionTag,
    Turn,
    installed_models,
)
from chatmemory.services import (
    SERVER,
    Actor,
    add_note,
    admit_turn,
    append_messages,
    erase_person,
    hold_session,
    open_session,
    preview_erasure,
    purge_session,
    read_history,
    tag_session,
    trim_session,
    user_scope,
)
from chatmemory.services.audit.keys import key_hash
from chatmemory.services.erasure import erasure
from chatmemory.services.erasure.past_erasures import find_erasures
from chatmemory.services.removal.vacuum import vacuum, vacuum_session
from chatmemory.services.turns.progress import add_rows, finish_turn, save_partial
from tests.factories import BY, make_messages, make_session, make_user
from tests.locking import concurrently, thread

pytestmark = [pytest.mark.django_db, pytest.mark.database]

CANARY = "canary"


def fill(user: Any) -> None:
    """Store each kind of data of a person: active, trimmed, purged, archived, running, waiting."""
    by = Actor.user(user)
    for key in ("talk", "purged", "archived", "expired", "runs", "waits"):
        open_session(
            session_key=f"{key}-{CANARY}",
            by=by,
            title=CANARY,
            instructions=CANARY,
            metadata={"note": CANARY},
        )
        append_messages(
            session_key=f"{key}-{CANARY}",
            by=by,
            messages=make_messages(CANARY, CANARY),
            client_id="first",
        )
    trim_session(session_key=f"talk-{CANARY}", by=by, keep_last=0, reason="")
    purge_session(session_key=f"purged-{CANARY}", by=by, reason="")
    Session.objects.filter(key__startswith="archived").update(archived_at=timezone.now())
    Session.objects.filter(key__startswith="expired").update(expires_at=timezone.now())
    claim = admit_turn(
        session_key=f"runs-{CANARY}", by=by, client_id="run", content=CANARY, owner="me"
    ).claim
    assert claim is not None
    save_partial(claim=claim, text=CANARY, step=1)
    admit_turn(session_key=f"waits-{CANARY}", by=by, client_id="next", content=CANARY)


def everything_stored() -> str:
    return "".join(repr(list(model._base_manager.values())) for model in installed_models())


@pytest.mark.slow
def test_nothing_of_the_person_stays():
    ann, bob = make_user("ann"), make_user("bob")
    fill(ann)
    make_session("bobs", owner=bob)
    append_messages(session_key="bobs", by=Actor.user(bob), messages=make_messages("hi"))
    would = preview_erasure(by=BY, scope=user_scope(ann))
    erased = erase_person(by=BY, scope=user_scope(ann), reason="asked for it")
    assert CANARY not in everything_stored()
    assert (erased.sessions, erased.messages, erased.turns, erased.held) == (6, 13, 2, {})
    assert (would.sessions, would.messages, would.turns, would.entry) == (6, 13, 2, None)
    assert Session.objects.get().key == "bobs"
    assert Message.stored.count() == 1
    assert not Turn.objects.exists()


@pytest.mark.slow
def test_the_receipt_states_actor_time_reason_and_counts():
    ann = make_user("ann")
    fill(ann)
    erased = erase_person(by=BY, scope=user_scope(ann), reason="asked for it")
    assert erased.entry is not None
    receipt = AuditEntry.objects.get(pk=erased.entry.pk)
    assert (receipt.action, receipt.reason, receipt.actor_label) == (
        "erase",
        "asked for it",
        "tests",
    )
    assert receipt.session_pk is None
    assert receipt.key_hash == key_hash(user_scope(ann))
    start = AuditEntry.objects.get(action="erasure_started")
    assert start.pk < receipt.pk
    assert start.key_hash == receipt.key_hash
    counts = {"sessions": 6, "messages": 13, "turns": 2, "held": []}
    about = {name: receipt.counts[name] for name in ("erasure", "erased_at")}
    assert receipt.counts == counts | about
    assert about["erasure"] == start.counts["erasure"]
    assert AuditEntry.objects.filter(action="erase", session_pk__isnull=False).count() == 6


@pytest.mark.regression
def test_the_receipt_counts_what_was_erased_before_an_interruption(monkeypatch):
    ann = make_user("ann")
    for number in range(5):
        key = f"talk{number}"
        append_messages(
            session_key=key, by=Actor.user(ann), messages=make_messages("a", "b"), create=True
        )
    kept = make_session("kept", owner=ann, held_at=timezone.now())

    def stop_at_the_second(session_pk: int) -> Any:
        if AuditEntry.objects.filter(action="erase").count() == 2:
            raise KeyboardInterrupt
        return vacuum_session(session_pk)

    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        erase_person(by=BY, scope=user_scope(ann), reason="asked for it")
    monkeypatch.undo()
    start = AuditEntry.objects.get(action="erasure_started")
    assert (start.session_pk, start.key_hash) == (None, key_hash(user_scope(ann)))
    erased = erase_person(by=BY, scope=user_scope(ann), reason="asked for it")
    assert (erased.sessions, erased.messages, erased.held) == (5, 10, {kept.pk: kept.key})
    assert erased.entry is not None
    assert erased.entry.counts["erasure"] == start.counts["erasure"]
    assert AuditEntry.objects.filter(action="erasure_started").count() == 1
    again = erase_person(by=BY, scope=user_scope(ann), reason="once more")
    assert (again.sessions, again.messages) == (0, 0)


def receipts() -> dict[str, tuple[int, int]]:
    """Return the sessions and messages in the last receipt of each erasure."""
    found = AuditEntry.objects.filter(action="erase", session_pk=None).order_by("pk")
    totals = found.values_list("counts", flat=True)
    return {counts["erasure"]: (counts["sessions"], counts["messages"]) for counts in totals}


def receipt_totals() -> tuple[int, ...]:
    return tuple(map(sum, zip(*receipts().values(), strict=True)))


def talks_of(user: Any, *keys: str) -> list[Session]:
    """Create sessions with two messages each."""
    for key in keys:
        append_messages(
            session_key=key, by=Actor.user(user), messages=make_messages("a", "b"), create=True
        )
    return [Session.objects.get(key=key) for key in keys]


@pytest.mark.regression
@pytest.mark.parametrize("last_seq", [2, 4, 5])
def test_the_receipt_of_a_damaged_session_counts_its_stored_rows(last_seq):
    ann = make_user()
    [talk] = talks_of(ann, "talk")
    append_messages(session_key="talk", by=Actor.user(ann), messages=make_messages("c", "d"))
    Message.stored.filter(seq=2).delete()
    Session.objects.filter(pk=talk.pk).update(last_seq=last_seq, stored_from=2, first_seq=2)
    assert preview_erasure(by=BY, scope=user_scope(ann)).messages == 3
    assert erase_person(by=BY, scope=user_scope(ann), reason="").messages == 3
    assert not Session.objects.exists()
    assert not Message.stored.exists()


@pytest.mark.regression
def test_an_erasure_also_completes_an_interrupted_one(monkeypatch):
    """The second call reads the interrupted erasures before the first one starts."""
    ann = make_user()
    talks_of(ann, "first", "second", "third")
    list_erasure = erasure.list_erasure

    def interrupted(*line: Any) -> None:
        list_erasure(*line)
        monkeypatch.setattr(erasure, "list_erasure", list_erasure)
        monkeypatch.setattr(erasure, "vacuum_session", lambda _pk: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            erase_person(by=BY, scope=user_scope(ann), reason="")
        monkeypatch.setattr(erasure, "vacuum_session", vacuum_session)

    monkeypatch.setattr(erasure, "list_erasure", interrupted)
    assert erase_person(by=BY, scope=user_scope(ann), reason="").sessions == 2
    assert not Session.objects.exists()
    assert erase_person(by=BY, scope=user_scope(ann), reason="").sessions == 1
    assert sorted(receipts().values()) == [(1, 2), (2, 4)]


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_sessions_erased_after_another_calls_receipt_are_in_a_receipt(postgresql, monkeypatch):
    """Two calls continue the same erasure; one is killed after the other has ended."""
    ann = make_user()
    scope = user_scope(ann)
    talks_of(ann, "first", "second", "third")
    is_begun, may_go_on = Event(), Event()
    later = []
    begin_erasure = erasure.begin_erasure

    def slow(session: Session, *about: Any) -> None:
        begin_erasure(session, *about)
        if not is_begun.is_set():
            is_begun.set()
            assert may_go_on.wait(30)

    def stop_at_the_later(session_pk: int) -> Any:
        if session_pk in later:
            raise KeyboardInterrupt
        return vacuum_session(session_pk)

    def late(session: Session, *about: Any) -> None:
        if session.pk in later:
            may_go_on.set()
            assert first.result(30).sessions == 3
        begin_erasure(session, *about)

    with thread() as submit:
        monkeypatch.setattr(erasure, "begin_erasure", slow)
        first = submit(erase_person, by=BY, scope=scope, reason="")
        assert is_begun.wait(30)
        later += [session.pk for session in talks_of(ann, "later")]
        monkeypatch.setattr(erasure, "begin_erasure", late)
        monkeypatch.setattr(erasure, "vacuum_session", stop_at_the_later)
        monkeypatch.setattr(erasure, "in_batches", lambda *of: reversed([*in_batches(*of)]))
        with pytest.raises(KeyboardInterrupt):
            erase_person(by=BY, scope=scope, reason="")
    monkeypatch.undo()
    assert receipt_totals() == (3, 6)
    assert erase_person(by=BY, scope=scope, reason="").sessions == 4
    assert receipt_totals() == (4, 8)
    assert not Session.objects.exists()


@pytest.mark.regression
def test_a_receipt_does_not_count_what_another_call_has_not_deleted(monkeypatch):
    ann = make_user()
    scope = user_scope(ann)
    talks_of(ann, "first", "second")
    close = erasure.Erasure.close

    def late(*about: Any) -> Any:
        monkeypatch.setattr(erasure.Erasure, "close", close)
        talks_of(ann, "later")
        monkeypatch.setattr(erasure, "vacuum_session", lambda _pk: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            erase_person(by=BY, scope=scope, reason="")
        monkeypatch.setattr(erasure, "vacuum_session", vacuum_session)
        return close(*about)

    monkeypatch.setattr(erasure.Erasure, "close", late)
    assert erase_person(by=BY, scope=scope, reason="").sessions == 2
    assert Session.objects.count() == 1
    assert erase_person(by=BY, scope=scope, reason="").sessions == 3
    assert receipt_totals() == (3, 6)
    assert not Session.objects.exists()


@pytest.mark.slow
@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_receipts_of_simultaneous_erasures_count_each_session_once(postgresql):
    ann = make_user()
    talks_of(ann, *(f"talk{number}" for number in range(12)))
    erase = partial(erase_person, by=BY, scope=user_scope(ann), reason="")
    concurrently(erase, erase, erase)
    assert not Session.objects.exists()
    assert receipt_totals() == (12, 24)


@pytest.mark.slow
def test_a_person_can_erase_only_themselves():
    ann, bob = make_user("ann"), make_user("bob")
    fill(ann)
    make_session("bobs", owner=bob)
    erase_person(by=Actor.user(ann), reason="")
    assert Session.objects.get().key == "bobs"
    with pytest.raises(TypeError):
        erase_person(by=Actor.user(ann), scope=user_scope(bob), reason="")


def test_a_session_on_hold_stays_and_is_listed():
    ann = make_user("ann")
    fill(ann)
    kept = make_session("kept", owner=ann, held_at=timezone.now())
    purged = Session.objects.get(removed_at__isnull=False)
    Session.objects.filter(pk=purged.pk).update(held_at=timezone.now())
    held = {purged.pk: purged.key, kept.pk: "kept"}
    assert preview_erasure(by=BY, scope=user_scope(ann)).held == held
    erased = erase_person(by=BY, scope=user_scope(ann), reason="")
    assert erased.held == held
    assert erased.entry is not None
    assert erased.entry.counts["held"] == [purged.pk, kept.pk]
    assert set(Session.objects.values_list("pk", flat=True)) == {purged.pk, kept.pk}
    assert Message.stored.count() == 2


def test_a_run_that_started_before_the_erasure_writes_nothing():
    ann = make_user("ann")
    make_session(owner=ann)
    claim = admit_turn(
        session_key="talk", by=Actor.user(ann), client_id="run", content="hi", owner="me"
    ).claim
    assert claim is not None
    erase_person(by=BY, scope=user_scope(ann), reason="")
    assert not add_rows(claim=claim, messages=make_messages("late"), step=None)
    assert finish_turn(claim=claim, status="complete", message=make_messages("", "late")[1]) is None
    assert not save_partial(claim=claim, text="late", step=1)
    assert not Message.stored.exists()


@pytest.mark.slow
def test_an_interrupted_erasure_hides_the_session_and_the_next_vacuum_deletes_it(monkeypatch):
    ann = make_user("ann")
    fill(ann)
    for session in Session.objects.all():
        SessionTag.objects.create(session=session, tag="contract")
        SessionNote.objects.create(session=session, text=CANARY)
        Feedback.objects.create(session=session, turn="t1", user_seq=1, value=1, reason=CANARY)
    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", lambda _pk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        erase_person(by=BY, scope=user_scope(ann), reason="")
    monkeypatch.undo()
    entry = AuditEntry.objects.get(action="erase")
    row = Session.objects.get(pk=entry.session_pk)
    assert (row.title, row.instructions, row.metadata, row.message_count) == ("", "", {}, 0)
    assert not row.tags.exists()
    assert not row.notes.exists()
    assert not row.feedback.exists()
    vacuum()
    assert not Session.objects.filter(pk=entry.session_pk).exists()
    erased = erase_person(by=BY, scope=user_scope(ann), reason="")
    assert erased.sessions == 6
    assert CANARY not in everything_stored()
    assert AuditEntry.objects.filter(session_pk=entry.session_pk, action="erase").count() == 1


def test_a_run_cannot_write_to_a_session_that_is_being_erased(monkeypatch):
    ann = make_user("ann")
    make_session(owner=ann)
    claim = admit_turn(
        session_key="talk", by=Actor.user(ann), client_id="run", content="hi", owner="me"
    ).claim
    assert claim is not None
    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", lambda _pk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        erase_person(by=BY, scope=user_scope(ann), reason="")
    assert not add_rows(claim=claim, messages=make_messages("late"), step=None)
    monkeypatch.undo()
    erase_person(by=BY, scope=user_scope(ann), reason="")
    assert AuditEntry.objects.filter(action="erase", session_pk__isnull=False).count() == 1
    assert not Message.stored.exists()


@pytest.mark.regression
@pytest.mark.parametrize(
    "act",
    [
        partial(hold_session, reason=""),
        partial(tag_session, tag=CANARY, reason=""),
        partial(add_note, text=CANARY),
    ],
)
def test_a_session_that_is_being_erased_gets_no_hold_tag_or_note(monkeypatch, act):
    """Otherwise the receipt would count messages that a hold keeps."""
    ann = make_user()
    talk = make_session(owner=ann)
    append_messages(session_key="talk", by=Actor.user(ann), messages=make_messages("hello"))
    refused = []

    def meanwhile(session_pk):
        with pytest.raises(NotFound):
            act(session_key="talk", session_pk=session_pk, by=BY, scope=user_scope(ann))
        refused.append(session_pk)
        return vacuum_session(session_pk)

    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", meanwhile)
    assert erase_person(by=BY, scope=user_scope(ann), reason="").messages == 1
    assert refused == [talk.pk]
    assert not Session.objects.filter(pk=talk.pk).exists()


def test_sessions_opened_during_the_erasure_are_not_erased():
    first = make_session("first")
    pks = in_batches(Session.objects.all())
    assert next(pks) == first.pk
    make_session("second")
    assert list(pks) == []


@pytest.mark.slow
def test_an_erasure_can_be_repeated():
    ann = make_user("ann")
    fill(ann)
    erase_person(by=BY, scope=user_scope(ann), reason="")
    again = erase_person(by=BY, scope=user_scope(ann), reason="")
    assert (again.sessions, again.messages) == (0, 0)


def test_partial_imports_are_erased_too():
    ann = make_user("ann")
    half = importing_scope(user_scope(ann))
    make_session("half", scope=half)
    append_messages(session_key="half", by=BY, scope=half, messages=make_messages(CANARY))
    assert preview_erasure(by=BY, scope=user_scope(ann)).messages == 1
    assert erase_person(by=BY, scope=user_scope(ann), reason="").messages == 1
    assert CANARY not in everything_stored()


def test_the_key_is_free_immediately():
    ann = make_user("ann")
    make_session(owner=ann)
    erase_person(by=BY, scope=user_scope(ann), reason="")
    append_messages(
        session_key="talk", by=Actor.user(ann), messages=make_messages("new"), create=True
    )
    assert len(read_history(session_key="talk", by=Actor.user(ann)).rows) == 1


def test_a_reason_that_cannot_be_stored_is_refused_before_the_first_delete():
    make_session()
    with pytest.raises(BadInput):
        erase_person(by=BY, scope=SERVER, reason="\0")
    assert Session.objects.exists()


def run_command(*args: str) -> str:
    out = StringIO()
    call_command("chatmemory_erase", *args, "--by=olga", stdout=out)
    return out.getvalue()


@pytest.mark.slow
def test_the_command_prints_the_receipt():
    ann = make_user("ann")
    fill(ann)
    args = ("--owner", "ann", "--reason", "asked for it")
    assert run_command(*args, "--dry-run") == (
        "6 conversations, 13 messages, 2 turns\nNothing was deleted.\n"
    )
    output = run_command(*args)
    receipt = AuditEntry.objects.get(session_pk=None, action="erase")
    assert output == (
        f"6 conversations, 13 messages, 2 turns\nThe receipt is audit entry {receipt.pk}.\n"
    )
    assert (receipt.actor_label, receipt.reason) == (
        "olga, chatmemory_erase",
        "asked for it",
    )


def test_the_command_erases_a_deleted_user():
    scope = "user:4711"
    Session.objects.create(scope=scope, key="talk")
    run_command("--scope", scope, "--reason", "x")
    assert not Session.objects.exists()


def test_the_command_fails_and_lists_sessions_on_hold():
    ann = make_user("ann")
    kept = make_session(owner=ann, held_at=timezone.now())
    with pytest.raises(CommandError, match=str(kept.pk)):
        run_command("--owner", "ann", "--reason", "x")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--owner", "nobody", "--reason", "x"), "nobody"),
        (("--owner", "ann\udc80", "--reason", "x"), "contains U\\+DC80"),
        (("--scope", "user:7\udc80", "--reason", "x"), "contains U\\+DC80"),
        (("--scope", "", "--reason", "x"), "--scope must not be empty"),
        (("--scope", SERVER, "--reason", " "), "--reason must not be empty"),
        (("--scope", "usr:7", "--reason", "x"), "'usr:7' is not a scope"),
        (("--scope", "user:seven", "--reason", "x"), "'seven' is not a primary key"),
        (("--scope", "visitor:7", "--reason", "x"), "64 hex digits"),
        (("--scope", "removed:7", "--reason", "x"), "internal scope"),
    ],
    ids=ascii,
)
def test_the_command_reports_what_it_cannot_erase(args, why):
    make_session()
    with pytest.raises(CommandError, match=why):
        run_command(*args)
    assert Session.objects.exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.regression
@pytest.mark.parametrize("scope", ["usr:7", "user:", "user", "visitor:x", "removed:1", "elsewhere"])
def test_services_refuse_a_scope_that_is_no_persons(scope):
    with pytest.raises(BadInput):
        erase_person(by=BY, scope=scope, reason="x")
    with pytest.raises(BadInput):
        find_erasures(by=BY, scope=scope)
    assert not AuditEntry.objects.exists()


@pytest.mark.regression
def test_no_session_is_opened_in_a_scope_of_an_unknown_form():
    with pytest.raises(BadInput):
        open_session(session_key="talk", by=BY, scope="usr:7")


@pytest.mark.regression
def test_an_erasure_that_finds_nothing_fails_and_records_a_receipt():
    make_session()
    with pytest.raises(CommandError, match="Nothing is stored under user:99999"):
        run_command("--scope", "user:99999", "--reason", "x")
    assert AuditEntry.objects.filter(action="erase").count() == 1
    assert "0 conversations" in run_command("--scope", "user:99999", "--reason", "x")
    assert Session.objects.exists()
