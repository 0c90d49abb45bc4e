"""What every removal of the core does to threads: no word of a removed message stays."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from unittest.mock import Mock
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.test import override_settings
from django.utils import timezone

from chatmemory import services
from chatmemory.agents.newest import withdraw_newest
from chatmemory.errors import BadInput, Conflict, Held, HistoryCleared, Unauthenticated
from chatmemory.langgraph import copying, models
from chatmemory.langgraph.actions import ThreadAction
from chatmemory.langgraph.models import Blob, Checkpoint, Thread, Write, key_of
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.langgraph.threads import lock_unfenced
from chatmemory.live.runner import runner
from chatmemory.models import AuditAction, AuditEntry, Message, Visitor
from chatmemory.services import SERVER, user_scope
from chatmemory.services.adoption import adopt_visitor
from chatmemory.services.erasure import erasure
from chatmemory.services.integrity.database_restore import recover_restored_database
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.removal.visitors import delete_ended_visitors
from chatmemory.testing.derived import check_derived_rows
from tests.factories import BY, TALK, make_messages, make_session, make_user, make_visitor
from tests.langgraph.graphs import at, graph_of, input_of, reply, stored_bytes

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def talk(*texts):
    """Store a session with these messages."""
    session = make_session()
    services.append_messages(**TALK, messages=make_messages(*(texts or ("canary", "b", "c", "d"))))
    session.refresh_from_db()
    return session


def run(saver, *texts, thread_id="talk", nodes=()):
    async_to_sync(graph_of(saver, *nodes).ainvoke)(input_of(*texts), at(thread_id))


def remembered(saver, thread_id="talk"):
    state = async_to_sync(graph_of(saver).aget_state)(at(thread_id))
    return state.values.get("messages", [])


@pytest.fixture(autouse=True)
def committed(django_capture_on_commit_callbacks):
    """Return a context in which the hooks of a commit run at its end."""
    return partial(django_capture_on_commit_callbacks, execute=True)


def vacuum_now():
    with override_settings(CHATMEMORY={"UNDO_DAYS": 0}):
        vacuum()


def rows():
    return sum(model.objects.count() for model in (Thread, Checkpoint, Blob, Write))


def make(low, high, text):
    return Thread(low=low, high=high, thread_id=text, key=uuid4().hex)


@pytest.mark.slow
def test_threads_follow_each_removal_as_derived_rows():
    check_derived_rows(Thread, make)


def redact(seq=1):
    services.redact_message(**TALK, seq=seq, reason="")


def trim():
    services.trim_session(**TALK, keep_last=2, reason="")
    vacuum_now()


def clear():
    services.clear_session(**TALK, reason="")
    vacuum_now()


def purge():
    services.purge_session(**TALK, reason="")
    vacuum_now()


def erase():
    services.erase_person(scope=SERVER, by=BY, reason="")


def restore_database():
    recover_restored_database(by=BY, reason="")


@pytest.mark.parametrize("remove", [redact, trim, clear, purge, erase, restore_database])
@pytest.mark.slow
def test_no_word_of_a_removed_message_stays_in_any_table(remove, committed):
    saver = DjangoSaver(session=talk())
    run(saver, "canary")
    assert b"canary" in stored_bytes()
    with committed():
        remove()
    assert b"canary" not in stored_bytes()
    assert rows() == 0


@pytest.mark.parametrize("remove", [redact, trim, clear, purge])
@pytest.mark.slow
def test_a_run_that_began_before_a_removal_stores_nothing(remove, committed):
    saver = DjangoSaver(session=talk())
    run(saver, "canary")

    async def node(state):
        await sync_to_async(remove)()
        return reply(state)

    with committed(), pytest.raises(HistoryCleared):
        run(saver, "canary", nodes=(node,))
    assert b"canary" not in stored_bytes()


@pytest.mark.parametrize("remove", [redact, clear])
def test_a_first_run_that_began_before_a_removal_stores_nothing(remove):
    saver = DjangoSaver(session=talk())
    config = at(checkpoint_id="first", __pregel_runtime=None)  # as LangGraph's own copy
    assert saver.get_tuple(config) is None
    remove()
    with pytest.raises((HistoryCleared, Conflict)):
        saver.put_writes(config, [("messages", "canary")], "task")
    assert b"canary" not in stored_bytes()


HIDE = {
    "trim": partial(services.trim_session, **TALK, keep_last=2, reason=""),
    "clear": partial(services.clear_session, **TALK, reason=""),
    "purge": partial(services.purge_session, **TALK, reason=""),
}


def begun(saver):
    """Return the config of a run that has read its thread."""
    config = at(checkpoint_ns="", __pregel_runtime=None)  # as LangGraph's own copy
    saver.get_tuple(config)
    return {"configurable": {**config["configurable"], "checkpoint_id": "next"}}


def check_refused(saver, config):
    writes = Write.objects.count()
    with pytest.raises(HistoryCleared):
        saver.put_writes(config, [("messages", "late")], "task")
    assert Write.objects.count() == writes


@pytest.mark.parametrize("hide", HIDE)
@pytest.mark.slow
def test_a_run_stores_nothing_in_a_thread_that_was_hidden_meanwhile(hide):
    saver = DjangoSaver(session=talk())
    run(saver, "a")
    config = begun(saver)
    saver.put_writes(config, [("messages", "in time")], "task")
    HIDE[hide]()
    check_refused(saver, config)


@pytest.mark.slow
def test_a_run_from_before_a_clear_stores_nothing_after_its_restore():
    saver = DjangoSaver(session=talk())
    run(saver, "a")
    config = begun(saver)
    entry = services.clear_session(**TALK, reason="")
    services.restore_session(scope=SERVER, by=BY, entry_pk=entry.pk, reason="")
    check_refused(saver, config)
    assert remembered(saver) == ["a", "reply to a"]


@pytest.mark.parametrize("remove", [redact, erase])
@pytest.mark.slow
def test_a_run_stores_nothing_in_a_thread_whose_rows_are_not_deleted_yet(remove):
    """As after a crash between the commit and `clean_up`, which no test's transaction runs."""
    saver = DjangoSaver(session=talk()) if remove is redact else DjangoSaver(scope=SERVER)
    run(saver, "canary")
    config = begun(saver)
    with patch_clean_up():
        remove()
        assert Thread.tombstones().count() == 1
        check_refused(saver, config)
        assert remembered(saver) == []
    vacuum_now()
    assert rows() == 0


@contextmanager
def patch_clean_up():
    """Keep tombstones, as a killed process does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Thread, "clean_up", classmethod(lambda cls: None))
        yield


def run_beside(saver, call):
    """Run a graph that stores its state at its end only, and call something meanwhile."""

    async def node(state):
        await sync_to_async(call)()
        return reply(state)

    graph = graph_of(saver, node)
    async_to_sync(graph.ainvoke)(input_of("canary"), at("talk"), durability="exit")


def edit():
    admit = partial(services.admit_turn, **TALK, client_id="edit", content="x")
    runner.run(admit(replaces=1, expect_seq=3).session_pk)


def withdraw():
    withdraw_newest(lambda row: row.text, **TALK, reason="")


@pytest.mark.parametrize("hide", [*HIDE.values(), edit, withdraw])
@pytest.mark.slow
def test_a_first_run_stores_nothing_at_its_end_if_messages_were_hidden_meanwhile(hide):
    saver = DjangoSaver(session=talk())
    with pytest.raises((Conflict, HistoryCleared)):
        run_beside(saver, hide)
    assert b"canary" not in stored_bytes()


@pytest.mark.parametrize("change", [edit, withdraw])
@pytest.mark.slow
def test_a_conversation_has_threads_after_an_edit_until_the_next(change):
    session = talk("a", "b", "c", "d")
    saver = DjangoSaver(session=session)
    change()
    run(saver, "e")
    run(saver, "f")
    assert remembered(saver) == ["e", "reply to e", "f", "reply to f"]
    if change is withdraw:
        withdraw()
        assert remembered(saver) == []
        entry = AuditEntry.objects.order_by("-pk").first()
        services.restore_session(scope=SERVER, by=BY, entry_pk=entry.pk, reason="")
        assert remembered(saver) == ["e", "reply to e", "f", "reply to f"]


@pytest.mark.slow
def test_an_edit_hides_the_thread():
    saver = DjangoSaver(session=talk())
    run(saver, "a")
    edit()
    assert remembered(saver) == []
    run(saver, "b")
    assert remembered(saver) == ["b", "reply to b"]


@pytest.mark.parametrize("hide", ["trim", "clear", "purge"])
@pytest.mark.slow
def test_a_restore_shows_the_thread_again(hide):
    saver = DjangoSaver(session=talk())
    run(saver, "a")
    HIDE[hide]()
    if hide != "purge":
        assert remembered(saver) == []
    entry = AuditEntry.objects.order_by("-pk").first()
    services.restore_session(scope=SERVER, by=BY, entry_pk=entry.pk, reason="")
    assert remembered(saver) == ["a", "reply to a"]
    run(saver, "b")
    assert remembered(saver) == ["a", "reply to a", "b", "reply to b"]


@pytest.mark.slow
def test_a_run_takes_the_place_of_a_hidden_thread(committed):
    saver = DjangoSaver(session=talk())
    run(saver, "canary")
    services.trim_session(**TALK, keep_last=2, reason="")
    with committed():
        run(saver, "b")
    assert remembered(saver) == ["b", "reply to b"]
    assert b"canary" not in stored_bytes()


@pytest.mark.slow
def test_a_thread_of_a_message_follows_only_this_message(committed):
    session = talk()
    saver = DjangoSaver(session=session, seq=3)
    run(saver, "open question")
    redact(1)
    trim()
    assert remembered(saver) == ["open question", "reply to open question"]
    with committed():
        redact(3)
    assert rows() == 0


@pytest.mark.slow
def test_a_thread_follows_each_message_that_its_runs_have_read(committed):
    session = talk()
    for seq in (3, 1, 2):
        run(DjangoSaver(session=session, seq=seq), "canary")
    assert [*Thread.objects.values_list("low", "high")] == [(1, 3)]
    with committed():
        redact(1)
    assert rows() == 0


@pytest.mark.slow
def test_a_thread_follows_messages_that_were_restored_after_its_first_run(committed):
    saver = DjangoSaver(session=talk())
    entry = services.trim_session(**TALK, keep_last=2, reason="")
    run(saver, "a")
    services.restore_session(scope=SERVER, by=BY, entry_pk=entry.pk, reason="")
    run(saver, "canary")
    with committed():
        redact(1)
    assert rows() == 0


def test_a_session_without_messages_has_no_thread():
    saver = DjangoSaver(session=make_session())
    with pytest.raises(BadInput, match="Append one before the graph runs"):
        run(saver, "a")
    assert rows() == 0


@pytest.mark.slow
def test_a_hold_keeps_the_thread():
    session = talk()
    saver = DjangoSaver(session=session, keep_last=1)
    run(saver, "canary")
    services.hold_session(**TALK, reason="")
    count = rows()
    with pytest.raises(Held):
        saver.delete_thread("talk")
    saver.prune(["talk"])
    saver.prune(["talk"], strategy="delete")
    saver.delete_for_runs(["run"])
    vacuum_now()
    erase()
    assert rows() == count
    run(saver, "b")  # which prunes nothing
    assert Checkpoint.objects.count() > 2


@pytest.mark.slow
def test_a_hold_keeps_a_hidden_thread_of_which_a_run_uses_the_id(committed):
    saver = DjangoSaver(session=talk())
    run(saver, "canary")
    services.trim_session(**TALK, keep_last=2, reason="")
    services.hold_session(**TALK, reason="")
    with committed():
        run(saver, "b")
    assert remembered(saver) == ["b", "reply to b"]
    assert b"canary" in stored_bytes()
    with committed():
        services.release_session(**TALK, reason="")
        vacuum_now()
    assert b"canary" not in stored_bytes()


@pytest.mark.slow
def test_threads_of_one_session_do_not_exist_for_another():
    first = DjangoSaver(session=talk())
    other = make_session("other")
    services.append_messages(**{**TALK, "session_key": "other"}, messages=make_messages("a"))
    other.refresh_from_db()
    second = DjangoSaver(session=other)
    run(first, "a")
    assert remembered(second) == []
    run(second, "b")
    second.delete_thread("talk")
    assert remembered(first) == ["a", "reply to a"]
    assert [len([*saver.list(None)]) for saver in (first, second)] == [3, 0]


def test_threads_of_one_person_do_not_exist_for_another():
    ann, bob = (DjangoSaver(scope=user_scope(make_user())) for _ in range(2))
    run(ann, "a")
    assert remembered(bob) == []
    bob.delete_thread("talk")
    bob.copy_thread("talk", "copy")
    assert [*bob.list(None)] == []
    assert remembered(ann) == ["a", "reply to a"]


@pytest.mark.parametrize("text", ["\0", "\ud800"])
@pytest.mark.parametrize("name", ["thread_id", "checkpoint_ns", "checkpoint_id"])
def test_an_id_that_no_database_can_store_is_refused(name, text):
    config = {"configurable": {"thread_id": "talk", name: text}}
    with pytest.raises(BadInput, match=r"contains U\+"):
        DjangoSaver(scope=SERVER).get_tuple(config)


def test_the_scope_may_be_in_the_config():
    user = make_user()
    scope = user_scope(user)
    graph = graph_of(DjangoSaver())
    async_to_sync(graph.ainvoke)(input_of("a"), at(scope=scope))
    assert remembered(DjangoSaver(scope=scope)) == ["a", "reply to a"]
    assert scope.encode() not in b"".join(bytes(row.metadata) for row in Checkpoint.objects.all())
    with pytest.raises(TypeError, match="only its own scope"):
        DjangoSaver(scope=SERVER).get_tuple(at(scope=scope))
    with pytest.raises(TypeError, match="needs a scope or a session"):
        DjangoSaver().get_tuple(at())
    with pytest.raises(BadInput, match="internal scope"):
        DjangoSaver(scope="removed:1")


@pytest.mark.slow
def test_an_erasure_deletes_the_threads_of_the_person_and_counts_them():
    user = make_user()
    saver = DjangoSaver(scope=user_scope(user))
    run(saver, "canary")
    run(DjangoSaver(scope=SERVER), "other")
    preview = services.preview_erasure(scope=user_scope(user), by=BY)
    erased = services.erase_person(scope=user_scope(user), by=BY, reason="")
    assert preview.derived == erased.derived == 1
    assert erased.entry.counts["derived"] == 1
    assert b"canary" not in stored_bytes()
    assert remembered(DjangoSaver(scope=SERVER)) == ["other", "reply to other"]


def test_a_run_does_not_outlive_an_erasure():
    saver = DjangoSaver(scope=SERVER)
    run(saver, "canary")

    async def node(state):
        await sync_to_async(erase)()
        return reply(state)

    with pytest.raises(HistoryCleared):
        run(saver, "canary", nodes=(node,))
    assert rows() == 0


def test_a_first_run_does_not_outlive_an_erasure_that_found_no_thread(committed):
    saver = DjangoSaver(scope=SERVER)
    config = at(checkpoint_id="first", __pregel_runtime=None)  # as LangGraph's own copy
    assert saver.get_tuple(config) is None
    erase()
    with committed(), pytest.raises(HistoryCleared):
        saver.put_writes(config, [("messages", "canary")], "task")
    assert rows() == 0
    run(saver, "new")
    assert remembered(saver) == ["new", "reply to new"]


@pytest.mark.slow
def test_the_threads_of_a_deleted_account_and_an_ended_visitor_are_deleted(committed):
    visitor = make_visitor()
    run(DjangoSaver(scope=visitor.actor.owner), "canary")
    Visitor.objects.update(ends_at=timezone.now() - timedelta(days=1))
    user = make_user()
    run(DjangoSaver(scope=user_scope(user)), "canary")
    with committed():
        delete_ended_visitors()
        user.delete()
    assert b"canary" not in stored_bytes()


@pytest.mark.slow
def test_an_adoption_moves_the_threads_and_keeps_both_of_one_id():
    user, visitor = make_user(), make_visitor()
    guest, own = (DjangoSaver(scope=scope) for scope in (visitor.actor.owner, user_scope(user)))
    run(guest, "a", thread_id="guest")
    run(guest, "b", thread_id="both")
    run(own, "c", thread_id="both")
    adopt_visitor(by=services.Actor.user(user), visitor=visitor.actor)
    assert remembered(own, "guest") == ["a", "reply to a"]
    assert remembered(own, "both") == ["c", "reply to c"]
    assert Thread.objects.filter(scope=user_scope(user)).count() == 3
    services.erase_person(scope=user_scope(user), by=BY, reason="")
    assert rows() == 0


@pytest.mark.slow
def test_a_first_run_stores_nothing_for_an_account_that_was_deleted_meanwhile():
    user = make_user()
    with pytest.raises(HistoryCleared):
        run_beside(DjangoSaver(scope=user_scope(user)), user.delete)
    assert rows() == 0


@pytest.mark.slow
def test_a_thread_that_is_created_until_the_deletion_of_an_account_commits_is_deleted(committed):
    user = make_user()
    saver = DjangoSaver(scope=user_scope(user))
    with committed():
        user.delete()
        run(saver, "canary")
    assert b"canary" not in stored_bytes()


@pytest.mark.slow
def test_a_first_run_stores_nothing_after_the_rest_of_an_interrupted_erasure(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(erasure, "delete_person_rows", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            erase()
    with pytest.raises(HistoryCleared):
        run_beside(DjangoSaver(scope=SERVER), erase)
    assert rows() == 0


@pytest.mark.slow
def test_a_first_run_stores_nothing_for_a_visitor_who_was_adopted_meanwhile():
    user, visitor = make_user(), make_visitor()
    adopt = partial(adopt_visitor, by=services.Actor.user(user), visitor=visitor.actor)
    with pytest.raises(Unauthenticated):
        run_beside(DjangoSaver(scope=visitor.actor.owner), adopt)
    assert rows() == 0


def test_an_adoption_leaves_a_thread_that_is_deleted_meanwhile(monkeypatch):
    user, visitor = make_user(), make_visitor()
    guest = DjangoSaver(scope=visitor.actor.owner)
    run(guest, "canary")

    def delete_first(*args):
        with patch_clean_up():
            guest.delete_thread("talk")
        return key_of(*args)

    monkeypatch.setattr(models, "key_of", delete_first)
    adopt_visitor(by=services.Actor.user(user), visitor=visitor.actor)
    assert remembered(DjangoSaver(scope=user_scope(user))) == []


def test_no_copy_is_made_of_a_thread_that_is_erased_meanwhile(monkeypatch):
    """As if the copy had waited for the lock of the thread."""
    saver = DjangoSaver(scope=SERVER)
    run(saver, "canary")

    def erase_first(pk):
        with patch_clean_up():
            erase()
        return lock_unfenced(pk)

    monkeypatch.setattr(copying, "lock_unfenced", erase_first)
    saver.copy_thread("talk", "copy")
    assert remembered(saver, "copy") == []
    vacuum_now()
    assert b"canary" not in stored_bytes()


WEEK = 7 * 86_400


@pytest.mark.parametrize(
    "settings",
    [
        {"SESSION_TTL": WEEK},
        {"RETENTION": [{"tag": "vip", "max_idle": 9 * WEEK}, {"max_idle": WEEK}]},
        {"RETENTION": [{"max_age": WEEK}], "SESSION_TTL": 9 * WEEK},
    ],
)
@pytest.mark.slow
def test_an_idle_thread_of_a_person_expires_as_a_session_does(settings):
    saver = DjangoSaver(scope=SERVER)
    run(saver, "canary")
    run(saver, "b", thread_id="new")
    old = timezone.now().date() - timedelta(days=10)
    Thread.objects.filter(thread_id="talk").update(last_active_day=old)
    for kept in ({}, {"RETENTION": [{"tag": "vip", "max_idle": WEEK}]}, {"RETENTION": "wrong"}):
        with override_settings(CHATMEMORY=kept):
            vacuum()
        assert b"canary" in stored_bytes()
    with override_settings(CHATMEMORY=settings):
        vacuum()
    assert b"canary" not in stored_bytes()
    assert remembered(saver, "new") == ["b", "reply to b"]


def test_the_trace_of_a_deleted_thread_disappears():
    saver = DjangoSaver(scope=SERVER)
    run(saver, "a")
    saver.delete_thread("talk")
    vacuum()
    assert rows() == 1
    Thread.objects.update(deleted_day=timezone.now().date() - timedelta(days=5))
    vacuum()
    assert rows() == 0


def test_a_used_trace_stays():
    saver = DjangoSaver(scope=SERVER)
    saver.delete_thread("talk")
    run(saver, "a")
    Thread.objects.update(last_active_day=timezone.now().date() - timedelta(days=50))
    vacuum()
    assert remembered(saver) == ["a", "reply to a"]


@pytest.mark.slow
def test_the_audit_counts_what_a_saver_removes():
    session = talk()
    run(DjangoSaver(session=session), "a")
    run(DjangoSaver(scope=SERVER), "b")
    DjangoSaver(session=session, reason="asked").delete_thread("talk")
    DjangoSaver(scope=SERVER, by=BY).prune(["talk", "unknown"])
    deleted, pruned = AuditEntry.objects.filter(action__in=ThreadAction.values).order_by("pk")
    assert (deleted.action, deleted.session_pk, deleted.reason) == (
        ThreadAction.DELETE,
        session.pk,
        "asked",
    )
    assert (deleted.counts, pruned.counts) == (
        {"checkpoints": 3},
        {"threads": 1, "checkpoints": 2},
    )
    assert (pruned.session_pk, pruned.actor_label) == (None, BY.label)
    assert AuditAction.TRIM not in ThreadAction.values


@pytest.mark.slow
def test_the_rows_of_a_session_that_a_host_deleted_are_cleaned_up():
    session = talk()
    run(DjangoSaver(session=session), "canary")
    Message.stored.all().delete()
    session.delete()
    vacuum()
    assert rows() == 0


@pytest.mark.slow
def test_a_thread_is_no_damage():
    run(DjangoSaver(session=talk()), "a")
    assert [finding.code for finding in check_integrity()] == []
