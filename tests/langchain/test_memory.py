"""ChatMemory, the interface of classic memory classes."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection
from django.test import override_settings

from chatmemory import services
from chatmemory.errors import BadInput, Busy, Conflict, HistoryCleared, MemoryUnavailable
from chatmemory.memory import ChatMemory
from chatmemory.models import Session
from chatmemory.services import SERVER, Actor
from tests.factories import make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

BOT = Actor.server("bot")


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
    assert await talk.aload_memory() == make_messages("a", "b")
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


@pytest.mark.parametrize(
    "use", [ChatMemory.load_memory, lambda talk: talk.save_context("c", "d")], ids=["load", "save"]
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
