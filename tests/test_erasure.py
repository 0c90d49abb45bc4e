"""Erasure: everything of a person is gone from the database, at once, with a receipt."""

from __future__ import annotations

from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.utils import timezone

from chatmemory.errors import BadInput, NotFound
from chatmemory.models import AuditEntry, Message, Session, SessionTag, Turn
from chatmemory.services import (
    SERVER,
    Actor,
    add_rows,
    admit_turn,
    append_messages,
    erase_person,
    find_erasures,
    finish_turn,
    hold_session,
    importing,
    open_session,
    preview_erasure,
    purge_session,
    read_history,
    replay_erasures,
    save_partial,
    tag_session,
    trim_session,
    user_scope,
    vacuum,
)
from chatmemory.services.keys import key_hash
from chatmemory.services.vacuum import vacuum_session
from chatmemory.services.walk import walk
from tests.factories import BY, make_session, make_user, said

pytestmark = [pytest.mark.django_db, pytest.mark.database]

CANARY = "canary"


def fill(user: Any) -> None:
    """Everything that can be of a person: living, trimmed, purged, archived, running, waiting."""
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
            session_key=f"{key}-{CANARY}", by=by, messages=said(CANARY, CANARY), client_id="first"
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
    return "".join(
        repr(list(model._base_manager.values()))
        for model in apps.get_app_config("chatmemory").get_models()
    )


def test_nothing_of_the_person_stays():
    ann, bob = make_user("ann"), make_user("bob")
    fill(ann)
    make_session("bobs", owner=bob)
    append_messages(session_key="bobs", by=Actor.user(bob), messages=said("hi"))
    would = preview_erasure(by=BY, scope=user_scope(ann))
    erased = erase_person(by=BY, scope=user_scope(ann), reason="asked for it")
    assert CANARY not in everything_stored()
    assert (erased.sessions, erased.messages, erased.turns, erased.held) == (6, 13, 2, [])
    assert (would.sessions, would.messages, would.turns, would.entry) == (6, 13, 2, None)
    assert Session.objects.get().key == "bobs"
    assert Message.stored.count() == 1
    assert not Turn.objects.exists()


def test_the_receipt_says_who_when_why_and_how_much():
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
    begun = AuditEntry.objects.get(action="erase_begun")
    assert begun.pk < receipt.pk
    assert begun.key_hash == receipt.key_hash
    counts = {"sessions": 6, "messages": 13, "turns": 2, "held": []}
    about = {name: receipt.counts[name] for name in ("erasure", "erased_at")}
    assert receipt.counts == counts | about
    assert about["erasure"] == begun.counts["erasure"]
    assert AuditEntry.objects.filter(action="erase", session_pk__isnull=False).count() == 6


@pytest.mark.regression
def test_the_receipt_counts_what_was_erased_before_an_interruption(monkeypatch):
    ann = make_user("ann")
    for number in range(5):
        key = f"talk{number}"
        append_messages(session_key=key, by=Actor.user(ann), messages=said("a", "b"), create=True)
    kept = make_session("kept", owner=ann, held_at=timezone.now())

    def stop_at_the_second(session_pk: int) -> Any:
        if AuditEntry.objects.filter(action="erase").count() == 2:
            raise KeyboardInterrupt
        return vacuum_session(session_pk)

    monkeypatch.setattr("chatmemory.services.erasure.vacuum_session", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        erase_person(by=BY, scope=user_scope(ann), reason="asked for it")
    monkeypatch.undo()
    begun = AuditEntry.objects.get(action="erase_begun")
    assert (begun.session_pk, begun.key_hash) == (None, key_hash(user_scope(ann)))
    erased = erase_person(by=BY, scope=user_scope(ann), reason="asked for it")
    assert (erased.sessions, erased.messages, erased.held) == (5, 10, [kept.pk])
    assert erased.entry is not None
    assert erased.entry.counts["erasure"] == begun.counts["erasure"]
    assert AuditEntry.objects.filter(action="erase_begun").count() == 1
    again = erase_person(by=BY, scope=user_scope(ann), reason="once more")
    assert (again.sessions, again.messages) == (0, 0)


def test_a_person_can_erase_themselves_and_nobody_else():
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
    gone = Session.objects.get(removed_at__isnull=False)
    Session.objects.filter(pk=gone.pk).update(held_at=timezone.now())
    assert preview_erasure(by=BY, scope=user_scope(ann)).held == [gone.pk, kept.pk]
    erased = erase_person(by=BY, scope=user_scope(ann), reason="")
    assert erased.held == [gone.pk, kept.pk]
    assert erased.entry is not None
    assert erased.entry.counts["held"] == [gone.pk, kept.pk]
    assert set(Session.objects.values_list("pk", flat=True)) == {gone.pk, kept.pk}
    assert Message.stored.count() == 2


def test_a_run_that_was_under_way_writes_nothing_back():
    ann = make_user("ann")
    make_session(owner=ann)
    claim = admit_turn(
        session_key="talk", by=Actor.user(ann), client_id="run", content="hi", owner="me"
    ).claim
    assert claim is not None
    erase_person(by=BY, scope=user_scope(ann), reason="")
    assert not add_rows(claim=claim, messages=said("late"), step=None)
    assert finish_turn(claim=claim, status="complete", message=said("", "late")[1]) is None
    assert not save_partial(claim=claim, text="late", step=1)
    assert not Message.stored.exists()


def test_what_was_cut_short_is_hidden_and_goes_at_the_next_vacuum(monkeypatch):
    ann = make_user("ann")
    fill(ann)
    for session in Session.objects.all():
        SessionTag.objects.create(session=session, tag="contract")
    monkeypatch.setattr("chatmemory.services.erasure.vacuum_session", lambda _pk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        erase_person(by=BY, scope=user_scope(ann), reason="")
    monkeypatch.undo()
    begun = AuditEntry.objects.get(action="erase")
    row = Session.objects.get(pk=begun.session_pk)
    assert (row.title, row.instructions, row.metadata, row.message_count) == ("", "", {}, 0)
    assert not row.tags.exists()
    vacuum()
    assert not Session.objects.filter(pk=begun.session_pk).exists()
    erased = erase_person(by=BY, scope=user_scope(ann), reason="")
    assert erased.sessions == 6
    assert CANARY not in everything_stored()
    assert AuditEntry.objects.filter(session_pk=begun.session_pk, action="erase").count() == 1


def test_a_run_writes_nothing_into_what_is_being_erased(monkeypatch):
    ann = make_user("ann")
    make_session(owner=ann)
    claim = admit_turn(
        session_key="talk", by=Actor.user(ann), client_id="run", content="hi", owner="me"
    ).claim
    assert claim is not None
    monkeypatch.setattr("chatmemory.services.erasure.vacuum_session", lambda _pk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        erase_person(by=BY, scope=user_scope(ann), reason="")
    assert not add_rows(claim=claim, messages=said("late"), step=None)
    monkeypatch.undo()
    erase_person(by=BY, scope=user_scope(ann), reason="")
    assert AuditEntry.objects.filter(action="erase", session_pk__isnull=False).count() == 1
    assert not Message.stored.exists()


@pytest.mark.regression
@pytest.mark.parametrize("act", [hold_session, partial(tag_session, tag=CANARY)])
def test_what_is_being_erased_can_be_neither_held_nor_tagged(monkeypatch, act):
    """Else the receipt would state that messages are deleted which a hold keeps."""
    ann = make_user()
    talk = make_session(owner=ann)
    append_messages(session_key="talk", by=Actor.user(ann), messages=said("hello"))
    refused = []

    def meanwhile(session_pk):
        with pytest.raises(NotFound):
            act(session_key="talk", session_pk=session_pk, by=BY, scope=user_scope(ann), reason="")
        refused.append(session_pk)
        return vacuum_session(session_pk)

    monkeypatch.setattr("chatmemory.services.erasure.vacuum_session", meanwhile)
    assert erase_person(by=BY, scope=user_scope(ann), reason="").messages == 1
    assert refused == [talk.pk]
    assert not Session.objects.filter(pk=talk.pk).exists()


def test_who_goes_on_opening_sessions_is_erased_up_to_now():
    first = make_session("first")
    pks = walk(Session.objects.all())
    assert next(pks) == first.pk
    make_session("second")
    assert list(pks) == []


def test_it_can_be_done_again():
    ann = make_user("ann")
    fill(ann)
    erase_person(by=BY, scope=user_scope(ann), reason="")
    again = erase_person(by=BY, scope=user_scope(ann), reason="")
    assert (again.sessions, again.messages) == (0, 0)


def test_what_was_half_imported_goes_too():
    ann = make_user("ann")
    half = importing(user_scope(ann))
    make_session("half", scope=half)
    append_messages(session_key="half", by=BY, scope=half, messages=said(CANARY))
    assert preview_erasure(by=BY, scope=user_scope(ann)).messages == 1
    assert erase_person(by=BY, scope=user_scope(ann), reason="").messages == 1
    assert CANARY not in everything_stored()


def test_the_key_is_free_at_once():
    ann = make_user("ann")
    make_session(owner=ann)
    erase_person(by=BY, scope=user_scope(ann), reason="")
    append_messages(session_key="talk", by=Actor.user(ann), messages=said("new"), create=True)
    assert len(read_history(session_key="talk", by=Actor.user(ann)).rows) == 1


def test_a_reason_that_can_not_be_written_down_is_refused_before_anything_goes():
    make_session()
    with pytest.raises(BadInput):
        erase_person(by=BY, scope=SERVER, reason="\0")
    assert Session.objects.exists()


def told(*args: str) -> str:
    out = StringIO()
    call_command("chatmemory_erase", *args, "--by=olga", stdout=out)
    return out.getvalue()


def test_the_command_prints_the_receipt():
    ann = make_user("ann")
    fill(ann)
    args = ("--owner", "ann", "--reason", "asked for it")
    assert told(*args, "--dry-run") == ("6 sessions, 13 messages, 2 turns\nNothing was deleted.\n")
    said = told(*args)
    receipt = AuditEntry.objects.get(session_pk=None, action="erase")
    assert said == (f"6 sessions, 13 messages, 2 turns\nThe receipt is audit entry {receipt.pk}.\n")
    assert (receipt.actor_label, receipt.reason) == (
        "olga, chatmemory_erase",
        "asked for it",
    )


def test_the_command_reaches_a_user_who_is_gone():
    scope = "user:4711"
    Session.objects.create(scope=scope, key="talk")
    told("--scope", scope, "--reason", "x")
    assert not Session.objects.exists()


def test_the_command_fails_with_what_was_kept():
    ann = make_user("ann")
    kept = make_session(owner=ann, held_at=timezone.now())
    with pytest.raises(CommandError, match=str(kept.pk)):
        told("--owner", "ann", "--reason", "x")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--owner", "nobody", "--reason", "x"), "nobody"),
        (("--owner", "ann\udc80", "--reason", "x"), "can't be kept"),
        (("--scope", "user:7\udc80", "--reason", "x"), "can't be kept"),
        (("--scope", "", "--reason", "x"), "--scope is empty"),
        (("--scope", SERVER, "--reason", " "), "--reason is empty"),
        (("--scope", "usr:7", "--reason", "x"), "'usr:7' is not a scope"),
        (("--scope", "user:seven", "--reason", "x"), "'seven' is not a primary key"),
        (("--scope", "visitor:7", "--reason", "x"), "64 hex digits"),
        (("--scope", "removed:7", "--reason", "x"), "internal scope"),
    ],
    ids=ascii,
)
def test_what_the_command_can_not_erase_is_said(args, why):
    make_session()
    with pytest.raises(CommandError, match=why):
        told(*args)
    assert Session.objects.exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.regression
@pytest.mark.parametrize("scope", ["usr:7", "user:", "user", "visitor:x", "removed:1", "elsewhere"])
def test_services_refuse_the_scope_of_no_person(scope):
    with pytest.raises(BadInput):
        erase_person(by=BY, scope=scope, reason="x")
    with pytest.raises(BadInput):
        find_erasures(by=BY, scope=scope)
    assert not AuditEntry.objects.exists()


@pytest.mark.regression
def test_no_session_is_opened_under_a_scope_of_an_unknown_form():
    with pytest.raises(BadInput):
        open_session(session_key="talk", by=BY, scope="usr:7")


@pytest.mark.regression
def test_an_erasure_that_finds_nothing_fails_and_leaves_a_receipt():
    make_session()
    with pytest.raises(CommandError, match="Nothing is stored under user:99999"):
        told("--scope", "user:99999", "--reason", "x")
    assert AuditEntry.objects.filter(action="erase").count() == 1
    assert "0 sessions" in told("--scope", "user:99999", "--reason", "x")
    assert Session.objects.exists()


# Was a person erased?


def asked(*args: str) -> str:
    out = StringIO()
    call_command("chatmemory_erased", *args, stdout=out)
    return out.getvalue()


@pytest.mark.regression
def test_the_command_answers_whether_a_person_was_erased(settings):
    ann = make_user("ann")
    scope = user_scope(ann)
    with pytest.raises(CommandError, match=f"{scope} was not erased") as refused:
        asked("--owner", "ann")
    assert refused.value.returncode == 1
    make_session("talk", owner=ann)
    kept = make_session("kept", owner=ann, held_at=timezone.now())
    erased = erase_person(by=BY, scope=scope, reason="asked for it")
    assert erased.entry is not None
    ann.delete()
    answer = asked("--scope", scope)
    assert "erased by tests: 1 session, 0 messages, 1 session on hold kept" in answer
    assert f"(receipt {erased.entry.pk}: asked for it)" in answer
    assert f"1 session of {scope} stored now." in answer
    assert kept.pk in erased.held


@pytest.mark.regression
def test_the_answer_survives_a_rotation_of_either_key(settings):
    base = settings.CHATMEMORY
    settings.CHATMEMORY = {**base, "AUDIT_KEY": "first"}
    erase_person(by=BY, scope="user:7", reason="asked for it")
    settings.SECRET_KEY = "another"
    assert "erased by tests" in asked("--scope", "user:7")
    settings.CHATMEMORY = {**base, "AUDIT_KEY": "second", "AUDIT_KEY_FALLBACKS": ["first"]}
    assert "erased by tests" in asked("--scope", "user:7")
    with pytest.raises(CommandError, match="user:8 was not erased"):
        asked("--scope", "user:8")


@pytest.mark.regression
def test_without_the_former_key_the_answer_is_unknown(settings):
    base = settings.CHATMEMORY
    settings.CHATMEMORY = {**base, "AUDIT_KEY": "first"}
    erase_person(by=BY, scope="user:7", reason="asked for it")
    settings.CHATMEMORY = {**base, "AUDIT_KEY": "second"}
    with pytest.raises(CommandError, match="Unknown: 1 erasure") as refused:
        asked("--scope", "user:7")
    assert refused.value.returncode == 2


@pytest.mark.regression
def test_an_interrupted_erasure_is_no_answer(monkeypatch):
    make_session("talk", owner=make_user("ann"))
    monkeypatch.setattr("chatmemory.services.erasure.vacuum_session", lambda _pk: 1 / 0)
    scope = Session.objects.get().scope
    with pytest.raises(ZeroDivisionError):
        erase_person(by=BY, scope=scope, reason="")
    with pytest.raises(CommandError, match="No erasure was completed"):
        asked("--scope", scope)
    assert find_erasures(by=BY, scope=scope).erasures[0].by == "tests"


@pytest.mark.regression
def test_an_erasure_of_which_only_the_list_is_left_is_found(settings, tmp_path):
    file = tmp_path / "erasures.jsonl"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ERASURE_LIST": file}
    erase_person(by=BY, scope="user:7", reason="")
    AuditEntry.objects.all().delete()  # as a restore does
    with pytest.raises(CommandError, match="No erasure was completed"):
        asked("--scope", "user:7")
    replay_erasures(by=BY)
    assert "erased by tests" in asked("--scope", "user:7")
