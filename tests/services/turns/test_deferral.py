"""Deferred messages: stored behind the running turn, once, whatever ends it."""

from __future__ import annotations

from functools import partial
from threading import Event

import pytest
from django.db import connection, transaction
from django.test import override_settings

from chatmemory import codec, services
from chatmemory.errors import BadInput, Busy, Conflict, HistoryCleared, QueueFull, UnknownTurn
from chatmemory.formats.exporting import export_sessions
from chatmemory.models import DatabaseNow, Message, Session, Turn
from chatmemory.services import Actor, append_messages, user_scope
from chatmemory.services.health.queue import read_queue
from chatmemory.services.integrity.database_restore import recover_restored_database
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.turns.claims import claim_next
from chatmemory.services.turns.progress import finish_turn, start_turn
from chatmemory.services.turns.recovery import recover_overdue_turn
from chatmemory.services.turns.unstored import read_unstored
from tests.factories import TALK, make_session, make_user, make_visitor
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db, pytest.mark.database]

OPERATOR = {**TALK, "reason": "asked"}
NEWS: list[dict[str, object]] = [
    {"role": "assistant", "content": "Your order was shipped."},
    {"role": "user", "content": "ok", "id": "é\"'%s"},
]


def run(name="c1", **changes):
    """Admit a turn that runs, and start it."""
    claim = services.admit_turn(**TALK, client_id=name, content=f"Q {name}", owner="me").claim
    assert claim is not None
    assert start_turn(claim=claim)
    return claim


def defer(name="news", messages=NEWS, **changes):
    return append_messages(
        **{**TALK, "messages": messages, "client_id": name, "if_busy": "defer", **changes}
    )


def finish(claim) -> None:
    assert finish_turn(
        claim=claim, status="complete", message={"role": "assistant", "content": "A"}
    )


def texts() -> list[str]:
    return list(Message.stored.in_order().values_list("text", flat=True))


def find(text: str) -> list[services.FoundText]:
    return list(services.find_text(sessions=Session.objects.all(), text=text))


def expire(claim) -> None:
    Turn.objects.filter(pk=claim.turn_pk).update(lease_until=DatabaseNow(), lease_owner="dead")


def requeue_and_stop(claim) -> None:
    Turn.objects.filter(pk=claim.turn_pk).update(started_at=None)
    expire(claim)
    assert recover_overdue_turn(claim.session_pk)
    assert defer("more").is_deferred
    services.stop_turn(**TALK, turn="c1")


def die(claim) -> None:
    expire(claim)
    assert recover_overdue_turn(claim.session_pk)


def stop(claim) -> None:
    expire(claim)
    assert services.stop_turn(**TALK, turn="c1") == "interrupted"


def restore_the_database(claim) -> None:
    recover_restored_database(by=Actor.command("test", "me"), reason="restore")


def archive_and_finish(claim) -> None:
    services.archive_session(**OPERATOR)
    finish(claim)


DEEPEST = 63
"""The levels of an artifact that a message may have at most."""
ENDS = [finish, die, stop, requeue_and_stop, restore_the_database, archive_and_finish]


def test_a_batch_that_is_too_large_for_its_end_is_not_deferred():
    make_session()
    claim = run()
    limit = len(codec.encode_batch([codec.encode(message) for message in NEWS]))
    changed = override_settings(CHATMEMORY={"MAX_MESSAGE_BYTES": limit - 1})
    with changed, pytest.raises(BadInput) as refused:
        defer()
    assert (refused.value.code, refused.value.limit) == ("too_large", limit - 1)
    finish(claim)
    assert texts() == ["Q c1", "A"]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_messages_are_stored_or_deferred_however_often_turns_begin_and_end_meanwhile(postgresql):
    make_session()
    is_over = Event()

    def chat():
        number = 0
        while not is_over.is_set():
            number += 1
            services.admit_turn(**TALK, client_id=f"q{number}", content="Q")
            while claim := claim_next(session_pk=Session.objects.get().pk, owner="me"):
                if start_turn(claim=claim):
                    finish(claim)

    def notify():
        try:
            for number in range(40):
                defer(f"n{number}", NEWS[:1])
        finally:
            is_over.set()

    concurrently(chat, notify)
    assert texts().count("Your order was shipped.") == 40


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_deferred_messages_follow_the_rows_of_the_turn_whatever_ends_it(end):
    session = make_session()
    claim = run()
    with pytest.raises(Busy):
        append_messages(**TALK, messages=NEWS)
    deferred = defer()
    assert (deferred.is_deferred, deferred.first_seq, deferred.is_duplicate) == (True, 0, False)
    assert texts() == ["Q c1"]
    end(claim)
    plain = [row.plain() for row in services.read_history(**TALK).rows]
    first = next(at for at, message in enumerate(plain) if message == NEWS[0])
    assert plain[first : first + 2] == NEWS
    assert first == (1 if end is requeue_and_stop else 2)
    session.refresh_from_db()
    assert (session.waiting, session.running, session.last_seq) == (0, None, len(plain))
    assert not list(check_integrity())
    repeated = defer()
    assert (repeated.first_seq, repeated.is_duplicate) == (first + 1, True)
    assert not repeated.is_deferred


def test_a_repeat_is_a_duplicate_while_the_batch_is_deferred():
    make_session()
    run()
    epoch = defer().epoch
    assert defer() == services.Appended(
        session_pk=Session.objects.get().pk,
        epoch=epoch,
        first_seq=0,
        last_seq=0,
        is_duplicate=True,
        is_deferred=True,
    )
    assert append_messages(**TALK, messages=NEWS, client_id="news").is_duplicate
    with pytest.raises(Conflict):
        defer(messages=NEWS[:1])
    with pytest.raises(Conflict):
        defer("c1")
    assert Session.objects.get().waiting == 1


def test_several_batches_are_stored_in_the_order_of_their_calls_before_a_turn_that_waits():
    make_session()
    claim = run()
    services.admit_turn(**TALK, client_id="c2", content="Q c2")
    for name in "ab":
        defer(name, [{"role": "assistant", "content": name}])
    finish(claim)
    append_messages(**TALK, messages=[{"role": "assistant", "content": "c"}])
    claimed = claim_next(session_pk=claim.session_pk, owner="me")
    assert texts() == ["Q c1", "A", "a", "b", "c", "Q c2"]
    assert claimed is not None
    assert (claimed.client_id, claimed.user_seq) == ("c2", 6)


@pytest.mark.parametrize("next_call", ["append", "claim", "send"])
def test_the_next_call_stores_what_a_dead_process_left(next_call):
    """It died between the commit of the turn's end and that of the batch."""
    session = make_session()
    claim = run()
    defer()
    Turn.objects.filter(pk=claim.turn_pk).mark_ended("complete")
    Session.objects.filter(pk=session.pk).update(running=None)
    if next_call == "append":
        append_messages(**TALK, messages=[{"role": "user", "content": "later"}])
    elif next_call == "send":
        sent = services.admit_turn(**TALK, client_id="c2", content="later", owner="me")
        assert sent.status == "waiting"
        assert claim_next(session_pk=session.pk, owner="me")
    else:
        assert claim_next(session_pk=session.pk, owner="me") is None
    later = [] if next_call == "claim" else ["later"]
    assert texts() == ["Q c1", *(str(message["content"]) for message in NEWS), *later]
    assert Session.objects.get().waiting == 0


def test_a_claim_stores_what_was_deferred_after_it_read_the_queue():
    """Another process ran a turn and died between the read and the lock of the claim."""
    session = make_session()
    services.admit_turn(**TALK, client_id="c1", content="Q c1")
    services.admit_turn(**TALK, client_id="c2", content="Q c2")
    calls = []

    def run_and_die(execute, sql, *arguments):
        if not calls and _is_lock(sql):
            calls.append(sql)
            claim = claim_next(session_pk=session.pk, owner="other")
            assert claim is not None
            defer()
            Turn.objects.filter(pk=claim.turn_pk).mark_ended("complete")
            Session.objects.filter(pk=session.pk).update(running=None)
        return execute(sql, *arguments)

    with connection.execute_wrapper(run_and_die):
        claim = claim_next(session_pk=session.pk, owner="me")
    assert claim is not None
    assert claim.client_id == "c2"
    assert texts() == ["Q c1", *(str(message["content"]) for message in NEWS), "Q c2"]
    assert Session.objects.get().waiting == 0


def _is_lock(sql: str) -> bool:
    """Whether the statement locks a session: on SQLite it is an update."""
    return sql.startswith('UPDATE "chatmemory_session"') or "FOR " in sql.rpartition("WHERE")[2]


def test_without_a_turn_the_messages_are_stored_now():
    make_session()
    assert (stored := defer()).first_seq == 1
    assert not stored.is_deferred


def test_while_a_turn_only_waits_the_messages_are_stored_before_its_own():
    session = make_session()
    services.admit_turn(**TALK, client_id="c1", content="Q c1")
    assert defer().first_seq == 1
    assert append_messages(**TALK, messages=NEWS[:1]).first_seq == 3
    claim = claim_next(session_pk=session.pk, owner="me")
    assert claim is not None
    assert claim.user_seq == 4


def test_deferred_messages_are_no_turns():
    """No list shows them to people, no stop cancels them, and they are not in the queue."""
    session = make_session()
    run()
    for name in "ab":
        defer(name)
    with override_settings(CHATMEMORY={"QUEUE_DEPTH": 1}):
        services.admit_turn(**TALK, client_id="c2", content="Q c2")
        with pytest.raises(QueueFull):
            services.admit_turn(**TALK, client_id="c3", content="Q c3")
    assert [turn.turn for turn in services.list_turns(**TALK)] == ["c1", "c2"]
    assert list(session.turns.waiting().values_list("client_id", flat=True)) == ["c2"]
    assert read_queue().waiting == 1
    with pytest.raises(UnknownTurn):
        services.stop_turn(**TALK, turn="a")
    with pytest.raises(UnknownTurn):
        services.get_turn(**TALK, turn="a")
    assert not list(check_integrity())


def test_turns_per_user_does_not_hold_back_deferred_messages():
    user = make_user()
    make_session(owner=user)
    address = {**TALK, "scope": user_scope(user)}
    claim = services.admit_turn(**address, client_id="c1", content="Q", owner="me").claim
    assert claim is not None
    assert start_turn(claim=claim)
    defer(scope=user_scope(user))
    Turn.objects.filter(pk=claim.turn_pk).mark_ended("complete")
    Session.objects.update(running=None)
    with override_settings(CHATMEMORY={"TURNS_PER_USER": 1}):
        make_session("other", owner=user)
        other = {**address, "session_key": "other"}
        assert services.admit_turn(**other, client_id="c9", content="Q", owner="me").claim
        assert claim_next(session_pk=claim.session_pk, owner="me") is None
    assert Message.stored.filter(session=claim.session_pk).count() == 3


def test_deferred_messages_move_with_the_sessions_of_a_visitor(settings):
    settings.CHATMEMORY = {"ALLOW_ANONYMOUS": True}
    guest, user = make_visitor().actor, Actor.user(make_user())
    talk = {"session_key": "talk", "by": guest, "create": True}
    admitted = services.admit_turn(**talk, client_id="c1", content="Q", owner="me")
    append_messages(**talk, messages=NEWS, client_id="news", if_busy="defer")
    services.adopt_visitor(by=user, visitor=guest)
    Turn.objects.filter(client_id="c1").mark_ended("complete")
    Session.objects.update(running=None)
    assert claim_next(session_pk=admitted.session_pk, owner="me") is None
    assert texts() == ["Q", *(str(message["content"]) for message in NEWS)]


@pytest.mark.parametrize("remove", ["clear_session", "purge_session"])
def test_a_removal_of_the_session_removes_deferred_messages(remove):
    make_session()
    claim = run()
    defer()
    getattr(services, remove)(**OPERATOR)
    assert not finish_turn(claim=claim, status="complete", message=NEWS[0])
    if remove == "clear_session":
        with pytest.raises(HistoryCleared):
            defer(epoch=claim.epoch)
        run("c2")
        with pytest.raises(HistoryCleared):
            defer()
        assert [found.turn.client_id for found in read_unstored(session=Session.objects.get())] == [
            "news"
        ]
    assert "shipped" not in "".join(texts())
    assert Session.objects.get().waiting == 0


def test_a_redaction_finds_and_deletes_deferred_messages():
    make_session()
    claim = run()
    defer()
    [found] = find("shipped")
    assert (found.turn, found.state) == ("news", "waiting")
    services.redact_turn(**OPERATOR, turn="news")
    finish(claim)
    assert texts() == ["Q c1", "A"]


@pytest.mark.parametrize(
    "remove", [services.clear_session, partial(services.redact_turn, turn="news")]
)
def test_a_repeat_does_not_store_removed_messages_again(remove):
    make_session()
    claim = run()
    defer()
    remove(**OPERATOR)
    finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": "A"})
    with pytest.raises(HistoryCleared):
        defer()
    assert "Your order was shipped." not in texts()


def test_a_recovery_after_a_restore_does_not_count_deferred_messages_as_cancelled():
    session = make_session()
    claim = run()
    defer()
    Turn.objects.filter(pk=claim.turn_pk).mark_ended("complete")
    Session.objects.update(running=None)
    recovered = recover_restored_database(by=Actor.command("test", "me"), reason="restore")
    assert recovered.cancelled == 0
    session.refresh_from_db()
    assert session.waiting == 1


def test_an_erasure_deletes_deferred_messages():
    user = make_user()
    make_session(owner=user)
    address = {**TALK, "scope": user_scope(user)}
    assert services.admit_turn(**address, client_id="c1", content="Q", owner="me").claim
    defer(scope=user_scope(user))
    services.erase_person(by=TALK["by"], reason="asked", scope=user_scope(user))
    assert not Turn.objects.exists()


@pytest.mark.parametrize("format", ["markdown", "jsonl"])
def test_an_export_contains_deferred_messages(format):
    make_session()
    run()
    defer()
    exported = "".join(export_sessions(Session.objects.all(), format=format))
    assert "Your order was shipped." in exported


def test_a_deferral_follows_the_callers_transaction():
    make_session()
    claim = run()
    with transaction.atomic():
        defer("a")
        transaction.set_rollback(True)
    with transaction.atomic():
        defer("b")
    finish(claim)
    assert Message.stored.filter(client_id__in="ab").get().client_id == "b"


def test_an_unknown_policy_is_refused():
    make_session()
    with pytest.raises(BadInput) as error:
        defer(if_busy="queue")
    assert error.value.field == "if_busy"


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"messages":',
        '{"messages":[1],"role":"user","content":""}',
        '{"messages":{},"role":"user","content":""}',
    ],
)
def test_another_text_is_no_batch(text):
    assert codec.decode_batch(text) == []


def test_a_batch_keeps_messages_of_any_depth():
    deep: object = "secret"
    for _ in range(DEEPEST):
        deep = [deep]
    message: dict[str, object] = {"role": "assistant", "content": "x", "artifact": deep}
    make_session()
    claim = run()
    defer(messages=[message])
    assert [found.turn for found in find("secret")] == ["news"]
    finish(claim)
    assert Message.stored.get(client_id="news").plain() == message
    with pytest.raises(BadInput):
        codec.encode({**message, "artifact": [deep]})
