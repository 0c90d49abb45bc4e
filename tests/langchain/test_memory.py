"""ChatMemory, the interface of classic memory classes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.test import override_settings

from chatmemory import services
from chatmemory.errors import (
    Archived,
    BadInput,
    Busy,
    Conflict,
    Held,
    HistoryCleared,
    MemoryUnavailable,
)
from chatmemory.memory import ChatMemory
from chatmemory.models import AuditEntry, DatabaseNow, Message, Session
from chatmemory.services import SERVER, Actor
from chatmemory.services.turns.progress import finish_turn
from tests.factories import make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

BOT = Actor.server("bot")
AT = {"session_key": "talk", "by": BOT, "scope": SERVER}


def memory(key="talk", **keys):
    return ChatMemory(key, by=BOT, scope=SERVER, **keys)


def clear(purge=False):
    remove = services.purge_session if purge else services.clear_session
    remove(session_key="talk", by=BOT, scope=SERVER, reason="test")


def test_what_was_saved_is_loaded_by_another_object():
    memory().save_context({"input": "a"}, {"output": "b"})
    memory().save_context("c", "d")
    assert memory().load_memory() == make_messages("a", "b", "c", "d")


async def test_the_async_methods_do_the_same():
    talk = memory()
    await talk.asave_context("a", "b")
    await talk.aadd_messages(make_messages("c", "d"))
    assert await talk.aload_memory() == await talk.aall() == make_messages("a", "b", "c", "d")
    assert await talk.atrim(keep_turns=1) == 2
    assert await talk.aload_memory() == make_messages("c", "d")
    await talk.aclear()
    assert await talk.aload_memory() == []


def test_it_loads_the_window_of_the_model():
    make_session(instructions="Be brief.")
    memory().save_context("a", "b")
    memory().save_context("c", "")
    with override_settings(CHATMEMORY={"WINDOW_MESSAGES": 1}):
        shown = memory().load_memory()
    assert shown == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "c"}]


def test_loading_creates_no_session():
    assert memory().load_memory() == []
    memory().clear()
    assert not Session.objects.exists()


def test_two_users_memories_do_not_mix():
    ann, ben = (ChatMemory("talk", by=Actor.user(make_user(name))) for name in ("ann", "ben"))
    ann.save_context("My loan is 5,000.", "Noted.")
    ben.save_context("Hello", "Hi")
    ann.save_context("And the rate?", "4 %.")
    assert ann.load_memory() == make_messages(
        "My loan is 5,000.", "Noted.", "And the rate?", "4 %."
    )
    assert ben.load_memory() == make_messages("Hello", "Hi")


def test_a_user_cannot_name_another_users_scope():
    ann, ben = make_user(), make_user()
    with pytest.raises(TypeError):
        ChatMemory("talk", by=Actor.user(ann), scope=services.user_scope(ben))


@pytest.mark.parametrize(("key", "error"), [(None, TypeError), (5, TypeError), ("", BadInput)])
def test_a_memory_without_a_session_is_refused_by_the_constructor(key, error):
    with pytest.raises(error):
        memory(key)


def test_a_key_selects_one_of_several_texts():
    talk = memory(input_key="question", output_key="answer")
    talk.save_context({"question": "a", "lang": "en"}, {"answer": "b", "score": 1})
    assert talk.load_memory() == make_messages("a", "b")


@pytest.mark.parametrize(
    ("inputs", "outputs", "field"),
    [
        ({"a": "x", "b": "y"}, "z", "inputs"),
        ("x", {}, "outputs"),
        (None, "x", "inputs"),
        ("x", {"output": ["y"]}, "outputs"),
        ("x", 5, "outputs"),
        ("nul \0", "x", "messages[0].content"),
    ],
)
def test_a_value_that_is_not_text_is_refused_by_name_and_not_stored(inputs, outputs, field):
    with pytest.raises(BadInput) as caught:
        memory().save_context(inputs, outputs)
    assert caught.value.field == field
    assert memory().load_memory() == []


def test_a_key_that_is_missing_is_named():
    with pytest.raises(BadInput, match="'question'"):
        memory(input_key="question").save_context({"input": "a"}, "b")


def test_a_pair_is_stored_in_one_batch_and_once():
    talk = memory()
    for _ in range(2):
        talk.save_context("a", "b", client_id="same")
    assert talk.load_memory() == make_messages("a", "b")
    with pytest.raises(Conflict):
        talk.save_context("a", "other", client_id="same")


@pytest.mark.parametrize("purge", [False, True])
def test_after_a_load_it_saves_nothing_into_a_cleared_session(purge):
    talk = memory()
    talk.save_context("a", "b")
    talk.load_memory()
    clear(purge)
    with pytest.raises(HistoryCleared):
        talk.save_context("c", "d")
    assert talk.load_memory() == []
    talk.save_context("e", "f")
    assert talk.load_memory() == make_messages("e", "f")


def test_it_works_after_its_own_clear():
    talk = memory()
    talk.save_context("a", "b")
    talk.load_memory()
    talk.clear()
    talk.save_context("c", "d")
    assert talk.load_memory() == make_messages("c", "d")


def test_in_a_run_of_the_session_saving_raises_busy():
    services.admit_turn(
        session_key="talk",
        client_id="run",
        content="hi",
        by=BOT,
        scope=SERVER,
        create=True,
        owner="me",
    )
    with pytest.raises(Busy):
        memory().save_context("a", "b")


def test_messages_of_any_role_are_added_in_one_batch_and_once():
    messages = [{"role": "system", "content": "Be brief."}, *make_messages("a", "b")]
    for _ in range(2):
        memory().add_messages(messages, client_id="same")
    assert memory().all() == messages
    with pytest.raises(BadInput):
        memory().add_messages([*make_messages("c"), {"role": "user", "content": 5}])
    assert memory().all() == messages


def test_a_value_that_json_has_not_is_added_only_leniently():
    message = {"role": "assistant", "content": "a", "at": object()}
    with pytest.raises(BadInput):
        memory().add_messages([message])
    memory().add_messages([message], lenient=True)
    [found] = memory().all()
    assert found["repaired"] == ["at"]


@pytest.mark.parametrize("ttl_seconds", [None, 60])
def test_an_empty_add_is_no_error_and_creates_nothing(ttl_seconds):
    talk = memory(ttl_seconds=ttl_seconds)
    talk.add_messages([])
    assert not Session.objects.exists()
    talk.save_context("", "")
    services.archive_session(**AT, reason="closed")
    talk.add_messages([])
    with pytest.raises(Archived):
        talk.add_messages(make_messages("a"))
    assert [message["content"] for message in talk.all()] == ["", ""]


def test_all_returns_what_the_window_leaves_out():
    memory().save_context("a", "b")
    memory().save_context("c", "d")
    with override_settings(CHATMEMORY={"WINDOW_MESSAGES": 1}):
        assert memory().load_memory() == make_messages("c", "d")
        assert memory().all() == make_messages("a", "b", "c", "d")
    assert memory("other").all() == []


def test_all_omits_what_a_later_turn_replaced():
    make_session()
    for text, changes in (("one", {}), ("two", {"replaces": 1, "expect_seq": 1})):
        turn = {**AT, "client_id": text, "content": text, "owner": "me", **changes}
        claim = services.admit_turn(**turn).claim
        finish_turn(claim=claim, status="complete", message=make_messages("", "done")[1])
    assert memory().all() == make_messages("two", "done")


def test_a_damaged_message_hides_no_other():
    talk = memory()
    talk.save_context("a", "b")
    talk.save_context("c", "d")
    Message.objects.filter(seq=2).update(body="{")
    damaged = {"role": "assistant", "content": "b", "quarantined": True}
    assert talk.all() == [*make_messages("a"), damaged, *make_messages("c", "d")]


@pytest.mark.parametrize("purge", [False, True])
def test_after_all_it_adds_nothing_to_a_cleared_session(purge):
    talk = memory(ttl_seconds=60)
    talk.save_context("a", "b")
    talk.all()
    clear(purge)
    with pytest.raises(HistoryCleared):
        talk.add_messages(make_messages("c"))
    assert talk.all() == []
    talk.add_messages(make_messages("d"))
    assert talk.all() == make_messages("d")


def test_a_trim_hides_whole_turns_and_can_be_undone():
    talk = memory()
    for texts in (("a", "b"), ("c", "d"), ("e", "f")):
        talk.save_context(*texts)
    assert talk.trim(keep_last=3) == 2
    assert talk.trim(keep_last=3) == talk.trim(keep_turns=2) == 0
    assert talk.all() == talk.load_memory() == make_messages("c", "d", "e", "f")
    assert talk.trim(keep_tokens=0) == 4
    assert talk.all() == []
    entry = AuditEntry.objects.order_by("pk").first()
    assert (entry.action, entry.reason) == ("trim", "trimmed by a ChatMemory")
    services.restore_session(entry_pk=entry.pk, by=BOT, scope=SERVER, reason="test")
    assert len(talk.all()) == 6


def test_a_trim_of_a_missing_session_hides_nothing_and_creates_none():
    assert memory().trim(keep_last=0) == 0
    assert not Session.objects.exists()


def test_a_trim_is_refused_by_a_hold_and_with_a_wrong_limit():
    memory().save_context("a", "b")
    services.hold_session(**AT, reason="evidence")
    with pytest.raises(Held):
        memory().trim(keep_last=0)
    for limit in ({}, {"keep_last": 1, "keep_turns": 1}, {"keep": 1}):
        with pytest.raises(TypeError):
            memory().trim(**limit)
    with pytest.raises(BadInput):
        memory().trim(keep_last=-1)


def test_a_session_ends_after_its_last_message():
    talk = memory(ttl_seconds=60)
    talk.save_context("a", "b")
    assert Session.objects.get().ttl_seconds == 60
    since = DatabaseNow() - timedelta(seconds=50)
    Session.objects.update(created_at=since, last_message_at=since)
    memory(ttl_seconds=60).save_context("c", "d")  # slides the end, also of another object
    Session.objects.update(created_at=since)
    assert len(talk.all()) == 4
    Session.objects.update(last_message_at=DatabaseNow() - timedelta(seconds=61))
    assert talk.load_memory() == talk.all() == []
    talk.save_context("e", "f")
    assert talk.all() == make_messages("e", "f")


def test_the_end_of_a_session_that_exists_stays():
    memory().save_context("a", "b")
    memory(ttl_seconds=60).save_context("c", "d")
    assert Session.objects.get().ttl_seconds is None


def test_a_refused_message_opens_no_session():
    with pytest.raises(BadInput):
        memory(ttl_seconds=60).save_context("nul \0", "b")
    assert not Session.objects.exists()


@pytest.mark.parametrize(
    ("ttl_seconds", "error"),
    [(0, BadInput), (2**31, BadInput), ("60", TypeError), (1.5, TypeError)],
)
def test_an_invalid_ttl_is_refused_by_the_constructor(ttl_seconds, error):
    with pytest.raises(error, match="ttl_seconds"):
        memory(ttl_seconds=ttl_seconds)


@pytest.mark.parametrize(
    "use",
    [
        ChatMemory.load_memory,
        ChatMemory.all,
        lambda talk: talk.trim(keep_tokens=1),
        lambda talk: talk.save_context("c", "d"),
    ],
    ids=["load", "all", "trim", "save"],
)
def test_a_failing_database_raises_memory_unavailable(use):
    talk = memory()
    talk.save_context("a", "b")
    with connection.execute_wrapper(refuse_messages), pytest.raises(MemoryUnavailable):
        use(talk)


def refuse_messages(execute, sql, params, many, context):
    if "chatmemory_message" in sql:
        raise OperationalError("gone")
    return execute(sql, params, many, context)
