"""Restore: exactly the hidden messages are visible again, or the restore is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory.access import rates
from chatmemory.errors import BadInput, Busy, Conflict, Forbidden, HistoryCleared, NotFound
from chatmemory.models import AuditEntry, Session, Turn
from chatmemory.services import (
    SERVER,
    Actor,
    Restoration,
    admit_turn,
    append_messages,
    clear_session,
    erase_person,
    list_removed,
    open_session,
    preview_restore,
    purge_session,
    read_history,
    restore_session,
    trim_session,
    user_scope,
)
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.retention.retention import expire_sessions
from chatmemory.services.turns.progress import finish_turn
from tests.factories import BY, make_messages, make_session, make_user, make_visitor
from tests.locking import concurrently

pytestmark = [pytest.mark.django_db, pytest.mark.database]

OURS: dict[str, Any] = {"by": BY, "scope": SERVER}
TALK: dict[str, Any] = {"session_key": "talk", **OURS}


def append(*texts: str) -> None:
    append_messages(**TALK, messages=make_messages(*texts))


def restore(entry: AuditEntry | None, **changes: Any) -> AuditEntry:
    assert entry is not None
    return restore_session(**{**OURS, "entry_pk": entry.pk, "reason": "", **changes})


def preview(entry: AuditEntry, **changes: Any) -> Restoration:
    return preview_restore(**{**OURS, "entry_pk": entry.pk, **changes})


def trim(keep_last: int) -> AuditEntry:
    entry = trim_session(**TALK, keep_last=keep_last, reason="")
    assert entry is not None
    return entry


def visible_seqs() -> list[int]:
    return [row.seq for row in read_history(**TALK).rows]


def state() -> Session:
    return Session.objects.get(key="talk", removed_at=None)


@pytest.mark.parametrize("act", ["trim", "clear", "purge"])
def test_a_restore_shows_exactly_the_hidden_messages(act):
    make_session()
    append("a", "b", "c", "d")
    before = read_history(**TALK).rows
    removed = {
        "trim": lambda: trim(0),
        "clear": lambda: clear_session(**TALK, reason=""),
        "purge": lambda: purge_session(**TALK, reason=""),
    }[act]()
    plan = preview(removed)
    assert (plan.messages, plan.undoes, plan.refusal) == (4, [removed], None)
    entry = restore(removed)
    assert read_history(**TALK).rows == before
    assert (entry.from_seq, entry.to_seq) == (1, 4)
    assert entry.counts == {"messages": 4, "undoes": removed.pk}
    append("e")
    assert visible_seqs() == [1, 2, 3, 4, 5]


def test_a_restore_also_undoes_later_removals():
    make_session()
    append(*"abcdef")
    first, second = trim(4), clear_session(**TALK, reason="")
    assert [entry.pk for entry in preview(first).undoes] == [first.pk, second.pk]
    assert preview(first).messages == 6
    restore(first)
    assert visible_seqs() == [1, 2, 3, 4, 5, 6]


def test_a_later_removal_can_be_undone_without_an_earlier_one():
    make_session()
    append(*"abcdef")
    trim(4)
    restore(trim(2))
    assert visible_seqs() == [3, 4, 5, 6]


def test_a_removal_cannot_be_undone_again():
    make_session()
    append("a", "b")
    entry = trim(0)
    restore(entry)
    assert isinstance(preview(entry).refusal, Conflict)
    assert preview(entry).messages == 0
    with pytest.raises(Conflict):
        restore(entry)


def test_an_undone_entry_can_undo_a_later_removal():
    make_session()
    append(*"abcd")
    first = trim(2)
    restore(first)
    trim(0)
    restore(first)
    assert visible_seqs() == [1, 2, 3, 4]


@pytest.mark.parametrize("act", [trim_session, clear_session, purge_session])
def test_only_undoing_a_clear_or_purge_changes_the_epoch(act):
    make_session()
    append("a", "b")
    entry = act(**TALK, reason="", **({"keep_last": 0} if act is trim_session else {}))
    before = Session.objects.get()
    assert preview(entry).moves_epoch == (act is not trim_session)
    restore(entry)
    assert (state().epoch != before.epoch) == (act is not trim_session)
    assert state().revision > before.revision


def test_a_writer_that_started_between_purge_and_restore_cannot_write():
    make_session()
    append("a", "b")
    entry = clear_session(**TALK, reason="")
    seen = read_history(**TALK).head.epoch
    restore(entry)
    with pytest.raises(HistoryCleared):
        append_messages(**TALK, messages=make_messages("late"), epoch=seen)


def test_a_trim_but_no_clear_can_be_undone_while_a_turn_runs():
    make_session()
    append("a", "b")
    trimmed = trim(0)
    cleared = clear_session(**TALK, reason="")
    claim = admit_turn(**TALK, client_id="run", content="hi", owner="me").claim
    for entry in (trimmed, cleared):  # undoing the first entry would undo the second too
        assert isinstance(preview(entry).refusal, Busy)
        with pytest.raises(Busy) as caught:
            restore(entry)
        assert caught.value.turn == "run"
    assert finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    later = trim(0)
    admit_turn(**TALK, client_id="again", content="hi", owner="me")
    restore(later)
    assert visible_seqs() == [3, 4, 5]
    assert state().running == "again"


def test_a_restore_that_changes_the_epoch_cancels_waiting_turns():
    session = make_session()
    append("a", "b")
    entry = clear_session(**TALK, reason="")
    admit_turn(**TALK, client_id="next", content="hi")
    restore(entry)
    assert Turn.objects.get(session=session).status == "cancelled"
    assert state().waiting == 0


def test_a_purged_session_whose_key_is_used_cannot_be_restored():
    make_session()
    append("a", "b")
    entry = purge_session(**TALK, reason="")
    make_session()
    assert isinstance(preview(entry).refusal, Conflict)
    with pytest.raises(Conflict):
        restore(entry)
    purge_session(**TALK, reason="")
    restore(entry)
    assert visible_seqs() == [1, 2]


def test_a_session_opened_during_the_restore_keeps_its_key():
    make_session()
    append("a", "b")
    entry = purge_session(**TALK, reason="")
    opened: list[Session] = []

    def open_first(execute, sql, params, many, context):
        columns = sql.partition("WHERE")[0]
        if "UPDATE" in columns and "SELECT" not in sql and "removed_scope" in columns:
            opened.append(make_session())
        return execute(sql, params, many, context)

    with (
        connection.execute_wrapper(open_first),
        pytest.raises(Conflict, match="Another session uses this key"),
    ):
        restore(entry)
    assert len(opened) == 1


def test_the_key_of_an_expired_session_is_free_for_a_restore():
    make_session()
    append("a", "b")
    entry = purge_session(**TALK, reason="")
    newer = make_session(expires_at=timezone.now() - timedelta(days=1))
    restore(entry)
    assert visible_seqs() == [1, 2]
    assert AuditEntry.objects.get(session_pk=newer.pk).reason == "expired"


def test_a_refused_restore_does_not_purge_an_expired_session():
    purged = make_session()
    append("a", "b")
    entry = purge_session(**TALK, reason="")
    Session.objects.filter(pk=purged.pk).update(stored_from=3)
    newer = make_session(expires_at=timezone.now() - timedelta(days=1))
    with pytest.raises(Conflict, match="permanently"):
        restore(entry)
    newer.refresh_from_db()
    assert newer.removed_at is None


def test_a_purged_session_without_messages_can_be_restored():
    make_session()
    restore(purge_session(**TALK, reason=""))
    assert visible_seqs() == []


def test_deleted_rows_cannot_be_restored():
    make_session()
    append("a", "b", "c")
    first = trim(1)
    AuditEntry.objects.update(created_at=timezone.now() - timedelta(days=31))
    vacuum()
    assert isinstance(preview(first).refusal, Conflict)
    with pytest.raises(Conflict, match="permanently"):
        restore(first)
    assert visible_seqs() == [3]


def test_an_interrupted_erasure_cannot_be_undone(monkeypatch):
    make_session()
    append("a", "b")
    entry = purge_session(**TALK, reason="")
    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", lambda _pk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        erase_person(by=BY, scope=SERVER, reason="")
    with pytest.raises(Conflict, match="permanently"):
        restore(entry)


def test_a_restored_session_that_has_expired_gets_a_new_end():
    make_session(expires_at=timezone.now() - timedelta(days=1), last_seq=0)
    Session.objects.update(held_at=timezone.now())
    append("a")
    Session.objects.update(held_at=None)
    expire_sessions()
    restore(AuditEntry.objects.get(action="purge"))
    assert visible_seqs() == [1]
    end = state().expires_at
    assert end is not None
    assert timedelta(days=29) < end - timezone.now() < timedelta(days=31)


@override_settings(CHATMEMORY={"SESSION_TTL": timedelta(hours=1)})
def test_a_restored_session_does_not_expire_immediately():
    make_session()
    append("a")
    entry = purge_session(**TALK, reason="")
    Session.objects.update(last_message_at=timezone.now() - timedelta(hours=2))
    restore(entry)
    assert visible_seqs() == [1]


def test_a_restored_session_that_has_not_expired_gets_no_end():
    make_session()
    restore(purge_session(**TALK, reason=""))
    assert state().expires_at is None


def test_another_users_session_cannot_be_restored():
    ann, bob = make_user("ann"), make_user("bob")
    make_session(owner=ann)
    entry = purge_session(session_key="talk", by=Actor.user(ann), reason="")
    for who in ({"by": Actor.user(bob), "scope": None}, {"scope": SERVER}):
        with pytest.raises(NotFound):
            preview(entry, **who)
        with pytest.raises(NotFound):
            restore(entry, **who)
    restore(entry, by=Actor.user(ann), scope=None)
    assert read_history(session_key="talk", by=Actor.user(ann)).rows == []


@pytest.mark.regression
@pytest.mark.parametrize("other", [BY, Actor("operator", "7", "olga")], ids=["server", "operator"])
@pytest.mark.parametrize("act", [clear_session, purge_session])
def test_a_user_cannot_undo_the_removal_of_another_actor(act, other):
    ann = make_user("ann")
    own = {"by": Actor.user(ann), "scope": None}
    append_messages(
        session_key="talk", by=Actor.user(ann), messages=make_messages("a", "b"), create=True
    )
    first = trim_session(session_key="talk", by=Actor.user(ann), keep_last=0, reason="")
    entry = act(session_key="talk", by=other, scope=user_scope(ann), reason="")
    with pytest.raises(NotFound):
        preview(entry, **own)
    with pytest.raises(NotFound):
        restore(entry, **own)
    assert isinstance(preview(first, **own).refusal, Forbidden)
    with pytest.raises(Forbidden):
        restore(first, **own)
    assert not Session.objects.filter(first_seq=1).exists()
    restore(entry, by=other, scope=user_scope(ann))
    assert preview(first, **own).refusal is None
    restore(first, **own)
    assert len(read_history(session_key="talk", by=Actor.user(ann)).rows) == 2


@pytest.mark.regression
def test_a_visitor_can_undo_only_their_own_removals():
    visitor = make_visitor().actor
    own = {"by": visitor, "scope": None}
    append_messages(session_key="talk", by=visitor, messages=make_messages("a"), create=True)
    entry = clear_session(session_key="talk", by=visitor, reason="")
    restore(entry, **own)
    entry = clear_session(session_key="talk", by=BY, scope=f"visitor:{visitor.id}", reason="")
    with pytest.raises(NotFound):
        restore(entry, **own)


@pytest.mark.regression
def test_a_restored_session_keeps_its_pin_up_to_the_limit(monkeypatch):
    monkeypatch.setattr(rates, "MAX_PINNED", 2)
    purges = []
    for key in ("a", "b"):
        make_session(key, pinned_at=timezone.now())
        purges.append(purge_session(session_key=key, **OURS, reason=""))
    make_session("c", pinned_at=timezone.now())
    for entry in purges:
        restore(entry)
    pinned = Session.objects.filter(pinned_at__isnull=False)
    assert [*pinned.order_by("key").values_list("key", flat=True)] == ["a", "c"]


def test_an_actor_lists_the_own_purges_in_one_scope():
    others = [Actor("operator", name, name) for name in ("7", "8")]
    entries = {}
    for by in others:
        for user in (make_user(f"ann{by.id}"), make_user(f"bob{by.id}")):
            make_session(owner=user)
            where = {"session_key": "talk", "by": by, "scope": user_scope(user)}
            entries[by, user_scope(user)] = purge_session(**where, reason="").pk
    for (by, scope), pk in entries.items():
        assert [found.entry_pk for found in list_removed(by=by, scope=scope)] == [pk]
        [other] = {*others} - {by}
        assert list_removed(by=other, scope=scope) == []


def purge_several(by: Actor, count: int) -> list[int]:
    """Purge new sessions of a user; return their entries, the last one first."""
    entries = []
    for number in range(count):
        key = f"talk {number}"
        open_session(session_key=key, by=by)
        entries.append(purge_session(session_key=key, by=by, reason="").pk)
    return entries[::-1]


@pytest.mark.parametrize("is_equal", [False, True])
def test_pages_of_purges_repeat_and_omit_none_also_of_equal_times(is_equal):
    ann, bob = Actor.user(make_user("ann")), Actor.user(make_user("bob"))
    entries = purge_several(ann, 5)
    foreign = purge_several(bob, 1)
    if is_equal:
        AuditEntry.objects.update(created_at=timezone.now())
    found: list[int] = []
    for before in (None, entries[1], entries[3], entries[4]):
        page = list_removed(by=ann, before=before, limit=2)
        found += [removed.entry_pk for removed in page]
    assert found == entries
    assert list_removed(by=ann, before=foreign[0]) == []


def test_purges_are_listed_by_their_time():
    ann = Actor.user(make_user("ann"))
    newest, *others = purge_several(ann, 3)
    AuditEntry.objects.filter(pk=newest).update(created_at=timezone.now() - timedelta(days=1))
    assert [removed.entry_pk for removed in list_removed(by=ann)] == [*others, newest]


@pytest.mark.slow
@pytest.mark.regression
def test_a_page_of_purges_is_read_from_one_range_of_an_index(postgresql):
    """By primary key, PostgreSQL would read the newer entries of all actors."""
    ann = Actor.user(make_user("ann"))
    [entry] = purge_several(ann, 1)
    made = AuditEntry.objects.get(pk=entry)
    AuditEntry.objects.bulk_create(
        AuditEntry(
            actor_kind="user",
            actor_id=actor_id,
            action="purge",
            session_pk=made.session_pk,
            counts=made.counts,
            created_at=made.created_at - timedelta(seconds=number),
            mac=f"{actor_id} {number}",
        )
        for actor_id in (made.actor_id, "other")
        for number in range(2_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE chatmemory_session, chatmemory_auditentry")
    for before in (None, made.pk):
        with CaptureQueriesContext(connection) as queries:
            list_removed(by=ann, before=before)
        [query] = queries
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {query['sql']}")
            plan = "\n".join(row for (row,) in cursor.fetchall())
        assert "Backward using chatmemory_audit_actor on chatmemory_auditentry" in plan
        [condition] = re.findall(r"Index Cond: \(\(\(actor_id.*", plan)
        assert "created_at >" in condition
        assert ("created_at <=" in condition) == (before is not None)


def test_an_entry_that_is_no_removal_is_not_found():
    make_session()
    append("a")
    entry = restore(trim(0))
    for pk in (entry.pk, entry.pk + 1_000):
        with pytest.raises(NotFound):
            restore_session(entry_pk=pk, by=BY, scope=SERVER, reason="")


def test_a_reason_that_cannot_be_stored_is_refused():
    make_session()
    entry = purge_session(**TALK, reason="")
    with pytest.raises(BadInput):
        restore_session(entry_pk=entry.pk, by=BY, scope=SERVER, reason="\0")


@pytest.mark.django_db(transaction=True)
def test_one_of_simultaneous_restores_succeeds():
    make_session()
    append("a", "b")
    entry = purge_session(**TALK, reason="")

    def act() -> bool:
        try:
            return bool(restore(entry))
        except Conflict:
            return False

    assert sum(concurrently(*[act] * 4)) == 1
    assert visible_seqs() == [1, 2]


@pytest.mark.django_db(transaction=True)
def test_a_restore_and_a_new_session_do_not_get_the_same_key():
    make_session()
    append("a", "b")
    entry = purge_session(**TALK, reason="")

    def act() -> None:
        with suppress(Conflict):
            restore(entry)

    def talk() -> None:
        append_messages(**TALK, messages=make_messages("new"), create=True)

    concurrently(act, talk)
    assert visible_seqs() in ([1], [1, 2, 3])
    assert Session.objects.filter(scope=SERVER, key="talk").count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_restore_during_appends_and_clears_leaves_no_gap():
    make_session()
    append("a", "b")

    def talk() -> None:
        for _ in range(6):
            append("x", "y")

    def undo() -> None:
        for _ in range(4):
            entry = clear_session(**TALK, reason="")
            restore(entry)

    concurrently(talk, undo, talk)
    assert visible_seqs() == list(range(1, 27))
