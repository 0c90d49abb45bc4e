"""A session of the Agents SDK: what it stores, returns, pops and clears, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest
from agents import SessionSettings
from agents.memory import Session as SessionProtocol
from django.db import OperationalError, connection

from chatmemory import services
from chatmemory.agents import DjangoSession
from chatmemory.errors import (
    Archived,
    BadInput,
    Busy,
    Held,
    HistoryCleared,
    MemoryUnavailable,
)
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.services import Actor
from chatmemory.services.sessions import MAX_PAGE
from tests.agents.scripts import CALL, RESULT, session_of, texts_of, user_items
from tests.factories import BY, TALK, make_messages, make_session, make_user, make_visitor

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def entry() -> AuditEntry:
    return AuditEntry.objects.filter(action="withdraw").latest("pk")


def restore() -> None:
    services.restore_session(entry_pk=entry().pk, by=BY, scope=TALK["scope"], reason="wanted")


def test_it_has_what_the_sdk_requires_of_a_session():
    session = session_of()
    assert isinstance(session, SessionProtocol)
    assert session.session_id == "talk"


@pytest.mark.parametrize(
    ("given", "limit"),
    [(None, None), ({"limit": 0}, 0), (SessionSettings(limit=5), 5)],
    ids=["none", "dict", "object"],
)
def test_the_settings_may_be_missing_a_dict_or_an_object(given, limit):
    settings = session_of(session_settings=given).session_settings
    assert isinstance(settings, SessionSettings)
    assert settings.limit == limit


def test_an_unknown_key_of_the_settings_is_refused():
    with pytest.raises(TypeError, match="limitt"):
        session_of(session_settings={"limitt": 1})


async def test_another_object_returns_the_items_in_order():
    await session_of().add_items(user_items("a", "b"))
    await session_of().add_items(user_items("c"))
    assert await session_of().get_items() == user_items("a", "b", "c")
    assert await session_of("other").get_items() == []


async def test_without_a_session_there_is_nothing_and_nothing_is_created():
    session = session_of()
    assert await session.get_items() == await session.get_items(3) == []
    assert await session.pop_item() is None
    await session.clear_session()
    await session.add_items([])
    assert not await Session.objects.aexists()


async def test_an_empty_add_is_no_error_in_a_closed_session():
    await session_of().add_items(user_items("a"))
    await Session.objects.aupdate(archived_at="2026-01-01T00:00:00Z")
    session = session_of()
    await session.add_items([])
    with pytest.raises(Archived):
        await session.add_items(user_items("b"))


@pytest.mark.parametrize(
    ("limit", "shown"),
    [(None, "abcd"), (2, "cd"), (4, "abcd"), (9, "abcd"), (0, ""), (-1, "")],
)
async def test_a_limit_selects_the_newest_items_in_order(limit, shown):
    await session_of().add_items(user_items(*"abcd"))
    assert texts_of(await session_of().get_items(limit)) == [*shown]
    assert texts_of(await session_of(session_settings={"limit": limit}).get_items()) == [*shown]


async def test_a_limit_of_the_call_overrides_that_of_the_settings():
    await session_of().add_items(user_items(*"abcd"))
    session = session_of(session_settings={"limit": 1})
    assert texts_of(await session.get_items(3)) == [*"bcd"]
    assert texts_of(await session.get_items()) == ["d"]


@pytest.mark.slow
async def test_a_limit_reads_as_many_pages_as_it_needs():
    for start in range(0, MAX_PAGE + 200, 600):
        await session_of().add_items(user_items(*map(str, range(start, start + 600))))
    found = texts_of(await session_of().get_items(MAX_PAGE + 100))
    assert found == [str(n) for n in range(100, MAX_PAGE + 200)]


async def test_a_limit_counts_items_and_not_withdrawn_or_other_messages():
    session = session_of()
    await session.add_items(user_items(*"abcdef"))
    for _ in range(3):
        await session.pop_item()
    empty = {"role": "assistant", "content": ""}
    await services.aappend_messages(**TALK, messages=[empty] * 9)
    assert texts_of(await session.get_items(2)) == ["b", "c"]


@pytest.mark.parametrize(
    "text", ["naïve 你好 🎉", "'; DROP TABLE x; --", "{'a': \"b\"} \\", " \n "]
)
async def test_any_text_of_a_person_is_kept(text):
    await session_of().add_items(user_items(text))
    assert await session_of().get_items() == user_items(text)


@pytest.mark.parametrize("item", [{"role": "user", "content": "nul \0"}, "text", 5, None])
async def test_one_bad_item_stores_none(item):
    with pytest.raises(BadInput, match=r"items\[1\]"):
        await session_of().add_items([*user_items("a"), item])
    assert not await Session.objects.aexists()


async def test_the_text_of_a_model_is_truncated_and_that_of_a_person_refused(settings):
    limits = {"MAX_MESSAGE_CHARS": 5, "MAX_REPLY_CHARS": 5}
    settings.CHATMEMORY = {**settings.CHATMEMORY, **limits}
    with pytest.raises(BadInput, match="limit is 5"):
        await session_of().add_items(user_items("123456"))
    await session_of().add_items([{"role": "assistant", "content": "123456"}])
    assert texts_of(await session_of().get_items()) == ["12345"]


async def test_pop_returns_the_newest_item_and_leaves_its_number():
    session = session_of()
    await session.add_items([*user_items("a"), CALL, RESULT])
    assert await session.pop_item() == RESULT
    assert await session.pop_item() == CALL
    await session.add_items(user_items("b"))
    assert texts_of(await session.get_items()) == ["a", "b"]
    assert [m.seq async for m in Message.objects.in_order()] == [1, 2, 3, 4]
    assert await session.pop_item() == user_items("b")[0]
    assert await session.pop_item() == user_items("a")[0]
    assert await session.pop_item() is None


async def test_pop_affects_only_its_session():
    for key in ("one", "two"):
        await session_of(key).add_items(user_items(key))
    assert texts_of([await session_of("one").pop_item()]) == ["one"]
    assert await session_of("one").get_items() == []
    assert texts_of(await session_of("two").get_items()) == ["two"]


async def test_messages_without_an_item_are_withdrawn_with_the_item_below_them():
    session = session_of()
    await session.add_items(user_items("a", "b"))
    await services.aappend_messages(**TALK, messages=[{"role": "assistant", "content": ""}] * 2)
    assert await session.pop_item() == user_items("b")[0]
    assert await session.get_items() == user_items("a")
    [withdrawn] = [one async for one in AuditEntry.objects.filter(action="withdraw")]
    assert (withdrawn.from_seq, withdrawn.to_seq, withdrawn.counts) == (2, 4, {"messages": 3})


async def test_messages_without_any_item_stay():
    await services.aappend_messages(
        **TALK, messages=[{"role": "assistant", "content": ""}], create=True
    )
    assert await session_of().pop_item() is None
    assert not await AuditEntry.objects.aexists()


async def test_a_popped_item_is_hidden_from_the_window_and_the_history():
    session = session_of()
    await session.add_items(user_items("a", "b"))
    await session.pop_item()
    page = await services.aread_history(**TALK, superseded=False)
    assert [row.text for row in page.rows] == ["a"]


async def test_after_a_clear_there_is_nothing_and_new_items_are_stored():
    session = session_of()
    await session.add_items(user_items("a"))
    await session.get_items()
    await session.clear_session()
    assert await session.get_items() == []
    await session.add_items(user_items("b"))
    assert await session.get_items() == user_items("b")
    assert (await AuditEntry.objects.aget()).action == "clear"


@pytest.mark.parametrize("remove", [services.clear_session, services.purge_session])
def test_a_run_stores_and_pops_nothing_after_anothers_clear(remove, async_calls):
    session = session_of()
    async_calls(session.add_items(user_items("a")))
    async_calls(session.get_items())
    remove(**TALK, reason="asked for it")
    with pytest.raises(HistoryCleared):
        async_calls(session.add_items(user_items("b")))
    services.append_messages(**TALK, messages=make_messages("new"), create=True)
    with pytest.raises(HistoryCleared):
        async_calls(session.pop_item())
    assert texts_of(async_calls(session.get_items())) == ["new"]
    async_calls(session.add_items(user_items("c")))
    assert texts_of(async_calls(session.get_items())) == ["new", "c"]


def test_a_hold_refuses_pop_and_clear(async_calls):
    session = session_of()
    async_calls(session.add_items(user_items("a")))
    services.hold_session(**TALK, reason="evidence")
    for use in (session.pop_item, session.clear_session):
        with pytest.raises(Held):
            async_calls(use())
    assert async_calls(session.get_items()) == user_items("a")


def test_a_turn_refuses_adding_and_popping(async_calls):
    session = session_of()
    async_calls(session.add_items(user_items("a")))
    services.admit_turn(**TALK, client_id="t", content="hi", owner="me")
    for use in (lambda: session.add_items(user_items("b")), session.pop_item):
        with pytest.raises(Busy):
            async_calls(use())
    assert texts_of(async_calls(session.get_items())) == ["a", "hi"]


def test_a_waiting_turn_refuses_popping(async_calls):
    session = session_of()
    async_calls(session.add_items(user_items("a")))
    Session.objects.update(waiting=1)
    with pytest.raises(Busy):
        async_calls(session.pop_item())


def test_persons_reach_only_their_own_items(async_calls):
    ann, ben = (DjangoSession("talk", by=Actor.user(make_user(name))) for name in ("ann", "ben"))
    guest = DjangoSession("talk", by=make_visitor().actor)
    async_calls(ann.add_items(user_items("My loan is 5,000.")))
    for other in (ben, guest, session_of()):
        assert async_calls(other.get_items()) == []
        assert async_calls(other.pop_item()) is None
        async_calls(other.clear_session())
    assert texts_of(async_calls(ann.get_items())) == ["My loan is 5,000."]
    assert Session.objects.get().scope == services.user_scope(Session.objects.get().owner)


@pytest.mark.parametrize(
    "options",
    [{"scope": "user:0"}, {"by": BY, "scope": None}, {"by": BY, "scope": "shop:1"}],
    ids=["foreign", "missing", "unknown"],
)
def test_a_wrong_scope_is_refused_by_the_constructor(options):
    given = {"by": Actor.user(make_user()), **options}
    with pytest.raises((TypeError, BadInput)):
        DjangoSession("talk", **given)


@pytest.mark.parametrize(("key", "error"), [(None, TypeError), (5, TypeError), ("", BadInput)])
def test_a_wrong_id_is_refused_by_the_constructor(key, error):
    with pytest.raises(error):
        session_of(key)


@pytest.mark.parametrize(
    "use",
    [
        DjangoSession.get_items,
        lambda session: session.add_items(user_items("b")),
        DjangoSession.pop_item,
    ],
    ids=["get", "add", "pop"],
)
def test_a_failing_database_raises_memory_unavailable(use, async_calls):
    session = session_of()
    async_calls(session.add_items(user_items("a")))
    with connection.execute_wrapper(_refuse), pytest.raises(MemoryUnavailable):
        async_calls(use(session))


def _refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    if "chatmemory_message" in sql:
        raise OperationalError("gone")
    return execute(sql, params, many, context)


def test_messages_of_the_chat_page_are_items(async_calls):
    make_session()
    calls = [{"id": "c1", "name": "weather", "args": {"city": "Oslo"}}]
    messages = [
        *make_messages("hi", "hello"),
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "Rain in Oslo.", "tool_call_id": "c1"},
    ]
    services.append_messages(**TALK, messages=messages)
    assert async_calls(session_of().get_items()) == [*make_messages("hi", "hello"), CALL, RESULT]
