"""The history class and the wrapper, sync and async."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import hypothesis
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import SynchronousOnlyOperation
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from langchain_core._api import LangChainDeprecationWarning
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from langgraph.graph import START, MessagesState, StateGraph

from chatmemory import services, signals
from chatmemory.errors import (
    BadInput,
    Conflict,
    HistoryCleared,
    MemoryUnavailable,
)
from chatmemory.langchain import DjangoChatMessageHistory, history, to_langchain, with_memory
from chatmemory.logs import forget_logged
from chatmemory.models import Message, Session, Turn
from chatmemory.services import sessions
from chatmemory.services.turns import progress
from chatmemory.services.turns.run_context import run_context
from tests.factories import make_session

pytestmark = pytest.mark.django_db

SERVER: dict[str, Any] = {"by": services.Actor.server("test"), "scope": services.SERVER}
CONFIG: Any = {"configurable": {"session_id": "s", "owner": None}}


def open_history(session_id: str = "s") -> DjangoChatMessageHistory:
    return DjangoChatMessageHistory(session_id, owner=None)


def texts(session_id: str = "s") -> list[str]:
    return [str(message.content) for message in open_history(session_id).messages]


def trim() -> None:
    services.trim_session(session_key="s", keep_last=2, reason="test", **SERVER)


def clear() -> None:
    services.clear_session(session_key="s", reason="test", **SERVER)


def purge() -> None:
    services.purge_session(session_key="s", reason="test", **SERVER)


def purge_and_create() -> None:
    purge()
    open_history().add_messages([HumanMessage("new")])


def model(meanwhile: Callable[[], object] = lambda: None) -> Runnable[Any, Any]:
    """Return a model that answers; `meanwhile` is called during the model call."""

    def answer(messages: list[BaseMessage]) -> AIMessage:
        meanwhile()
        return AIMessage(f"re: {messages[-1].content}")

    async def aanswer(messages: list[BaseMessage]) -> AIMessage:
        return await sync_to_async(answer)(messages)

    return RunnableLambda(answer, aanswer)


def langchains(model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    with pytest.warns(LangChainDeprecationWarning, match="RunnableWithMessageHistory"):
        return RunnableWithMessageHistory(model, open_history)


def invoke(chain: Runnable[Any, Any], value: object, config: Any = CONFIG) -> object:
    return chain.invoke(value, config)


def ainvoke(chain: Runnable[Any, Any], value: object, config: Any = CONFIG) -> object:
    return async_to_sync(chain.ainvoke)(value, config)


def stream(chain: Runnable[Any, Any], value: object, config: Any = CONFIG) -> object:
    return list(chain.stream(value, config))


def astream(chain: Runnable[Any, Any], value: object, config: Any = CONFIG) -> object:
    async def collected() -> list[object]:
        return [chunk async for chunk in chain.astream(value, config)]

    return async_to_sync(collected)()


@pytest.fixture(params=[invoke, ainvoke])
def call(request):
    return request.param


@pytest.fixture(params=[invoke, ainvoke, stream, astream])
def run(request):
    return request.param


class Sync:
    """The sync methods of a history."""

    read = staticmethod(lambda history: history.messages)
    add = staticmethod(lambda history, messages: history.add_messages(messages))
    clear = staticmethod(lambda history: history.clear())


class Async:
    """Their async versions."""

    read = staticmethod(lambda history: async_to_sync(history.aget_messages)())
    add = staticmethod(lambda history, messages: async_to_sync(history.aadd_messages)(messages))
    clear = staticmethod(lambda history: async_to_sync(history.aclear)())


@pytest.fixture(params=[Sync, Async])
def way(request):
    return request.param


@pytest.fixture
def failures():
    """The `save_failed` signals that were sent."""
    sent: list[dict[str, Any]] = []

    def note(sender: object, signal: object, **values: Any) -> None:
        sent.append(values)

    signals.save_failed.connect(note)
    yield sent
    signals.save_failed.disconnect(note)


class TestUnderRunnableWithMessageHistory:
    def test_a_turn_is_stored_and_seen_by_the_next(self, call):
        chain = langchains(model())
        call(chain, [HumanMessage("1")])
        call(chain, [HumanMessage("2")])
        assert texts() == ["1", "re: 1", "2", "re: 2"]

    def test_overlapping_turns_lose_no_message(self, call):
        call(langchains(model()), [HumanMessage("0")])
        inner = langchains(model())
        call(langchains(model(lambda: call(inner, [HumanMessage("b")]))), [HumanMessage("a")])
        assert texts() == ["0", "re: 0", "b", "re: b", "a", "re: a"]

    def test_a_trim_during_a_model_call_is_kept(self, call):
        for text in "123":
            call(langchains(model()), [HumanMessage(text)])
        call(langchains(model(trim)), [HumanMessage("4")])
        assert texts() == ["3", "re: 3", "4", "re: 4"]

    @pytest.mark.parametrize("removal", [clear, purge, purge_and_create])
    def test_a_history_that_is_removed_during_a_model_call_stays_removed(self, call, removal):
        call(langchains(model()), [HumanMessage("1")])
        call(langchains(model(removal)), [HumanMessage("2")])
        assert texts() == (["new"] if removal is purge_and_create else [])

    def test_a_failed_save_is_logged_signalled_and_raised_at_the_next_use(
        self, call, failures, caplog
    ):
        own = open_history()
        with pytest.warns(LangChainDeprecationWarning):
            chain = RunnableWithMessageHistory(model(), lambda session_id: own)
        with caplog.at_level(logging.ERROR, logger=history.__name__):
            call(chain, [HumanMessage("secret\0")])

        (failure,) = failures
        assert failure["error"] == "bad_text"
        (record,) = (record for record in caplog.records if record.name == history.__name__)
        assert failure["ref"] in record.getMessage()
        assert "secret" not in record.getMessage()
        with pytest.raises(BadInput):
            call(chain, [HumanMessage("2")])
        assert texts() == []


class TestWithMemory:
    def test_passes_the_history_and_stores_the_turn(self, run):
        seen = []

        def answer(messages: list[BaseMessage]) -> AIMessage:
            seen.append([message.content for message in messages])
            return AIMessage("yes")

        chain = with_memory(RunnableLambda(answer))
        run(chain, "1")
        run(chain, [SystemMessage("be kind"), HumanMessage("2")])
        assert seen == [["1"], ["1", "yes", "be kind", "2"]]
        assert texts() == ["1", "yes", "be kind", "2", "yes"]

    def test_stores_a_complete_streamed_answer(self, run):
        model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
        run(with_memory(model), "count")
        assert texts() == ["count", "one two three"]
        assert type(open_history().messages[1]) is AIMessage

    def test_accepts_dicts_with_keys(self, run):
        def answer(value: dict[str, Any]) -> dict[str, object]:
            return {"text": f"{value['question']} after {len(value['before'])}", "cost": 1}

        chain = with_memory(
            RunnableLambda(answer),
            input_messages_key="question",
            history_messages_key="before",
            output_messages_key="text",
        )
        run(chain, {"question": "1"})
        run(chain, {"question": "2"})
        assert texts() == ["1", "1 after 0", "2", "2 after 2"]

    def test_stores_messages_that_a_graph_returns_once(self, run):
        def answer(state: dict[str, Any]) -> dict[str, object]:
            return {"messages": [*state["messages"], AIMessage("yes")]}

        chain = with_memory(
            RunnableLambda(answer), input_messages_key="messages", output_messages_key="messages"
        )
        run(chain, {"messages": "1"})
        run(chain, {"messages": [HumanMessage("2")]})
        assert texts() == ["1", "yes", "2", "yes"]

    def test_streams_the_states_of_a_graph(self):
        graph: Any = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": model().invoke(state["messages"])})
        graph.add_edge(START, "model")
        chain = with_memory(
            graph.compile(), input_messages_key="messages", output_messages_key="messages"
        )
        for text in "12":
            list(chain.stream({"messages": text}, CONFIG, stream_mode="values"))
        assert texts() == ["1", "re: 1", "2", "re: 2"]

    def test_raises_a_failed_save(self, run):
        run(with_memory(model()), "1")
        with pytest.raises(HistoryCleared):
            run(with_memory(model(purge)), "2")
        assert texts() == []

    def test_stores_nothing_of_a_run_that_fails(self, run):
        def fail() -> None:
            raise RuntimeError

        with pytest.raises(RuntimeError):
            run(with_memory(model(fail)), "1")
        assert texts() == []

    def test_refuses_bad_input_before_the_run(self, run):
        def never() -> None:
            pytest.fail("the model was called")

        chain = with_memory(model(never))
        for value in ("a\0", [HumanMessage("x"), RemoveMessage(id="1")], 5, None, {"a": "b"}):
            with pytest.raises(BadInput, match="input"):
                run(chain, value)

    def test_keeps_an_answer_that_json_cannot_represent(self, run):
        moment = datetime(2026, 11, 21, tzinfo=UTC)
        answer = AIMessage("at\0noon", additional_kwargs={"at": moment, "n": float("nan")})
        run(with_memory(RunnableLambda(lambda _: answer)), "when?")
        kept: Any = open_history().messages[1]
        assert kept.content == "at\ufffdnoon"
        assert kept.additional_kwargs == {"at": str(moment), "n": None}
        assert kept.repaired == ["content", "additional_kwargs.at", "additional_kwargs.n"]

    def test_uses_the_given_history(self, run):
        run(with_memory(model(), lambda: open_history("other")), "1", {})
        assert texts("other") == ["1", "re: 1"]

    def test_requires_a_session_id_and_an_owner(self, run):
        with pytest.raises(TypeError, match="session_id and an owner"):
            run(with_memory(model()), "1", {"configurable": {"session_id": "s"}})


class TestWhose:
    @pytest.mark.parametrize("session_id", [None, "", 5, b"s", ["s"]])
    def test_the_session_id_must_be_a_string(self, session_id):
        with pytest.raises(TypeError, match="session_id must be"):
            DjangoChatMessageHistory(session_id, owner=None)

    @pytest.mark.parametrize("owner", [User(), AnonymousUser(), 1, "ann", False])
    def test_the_owner_must_be_a_saved_user_or_none(self, owner):
        with pytest.raises(TypeError, match="owner must be"):
            DjangoChatMessageHistory("s", owner=owner)

    @pytest.mark.parametrize("session_id", ["a\0", "a\ud800", "a" * 201])
    def test_a_key_that_cannot_be_stored_is_bad_input(self, session_id):
        with pytest.raises(BadInput):
            open_history(session_id)

    def test_the_first_add_creates_the_session_in_the_given_scope(self, way):
        ann = User.objects.create(username="ann")
        mine = DjangoChatMessageHistory("s", owner=ann)
        way.clear(mine)
        assert way.read(mine) == []
        assert not Session.objects.exists()

        way.add(mine, [HumanMessage("hi")])
        assert Session.objects.get().scope == services.user_scope(ann)

    def test_the_same_key_in_another_scope_is_another_session(self, way):
        ann, bob = (User.objects.create(username=name) for name in ("ann", "bob"))
        for owner in (ann, None):
            own = DjangoChatMessageHistory("s", owner=owner)
            way.add(own, [HumanMessage(f"of {owner}")])
        assert way.read(DjangoChatMessageHistory("s", owner=bob)) == []
        assert [m.content for m in way.read(DjangoChatMessageHistory("s", owner=ann))] == ["of ann"]
        assert texts() == ["of None"]


class TestView:
    def test_contains_the_first_read_and_its_own_later_messages(self, way):
        way.add(open_history(), [HumanMessage("0")])
        own = open_history()
        assert [m.content for m in way.read(own)] == ["0"]

        way.add(open_history(), [HumanMessage("of another")])
        way.add(own, [HumanMessage("1"), AIMessageChunk(content="2")])
        assert way.read(own) == [HumanMessage("0"), HumanMessage("1"), AIMessage("2")]
        assert texts() == ["0", "of another", "1", "2"]

    def test_is_ordered_by_seq_after_the_clock_jumped_back(self, way):
        way.add(open_history(), [HumanMessage(text) for text in "123"])
        Message.objects.filter(seq__gt=1).update(created_at=datetime(2020, 1, 1, tzinfo=UTC))
        assert [message.content for message in way.read(open_history())] == ["1", "2", "3"]

    def test_is_not_changed_through_the_returned_list(self, way):
        own = open_history()
        way.read(own).append(HumanMessage("x"))
        assert way.read(own) == []

    def test_is_what_another_object_reads(self, way):
        own = open_history()
        way.read(own)
        way.add(own, [AIMessage("a\0", id="1"), ToolMessage("4", tool_call_id="c", artifact=[1])])
        assert way.read(own)[1:] == way.read(open_history())[1:]

    def test_is_empty_after_its_own_clear_and_accepts_messages(self, way):
        own = open_history()
        way.read(own)
        way.add(own, [HumanMessage("1")])
        way.clear(own)
        assert way.read(own) == []

        way.add(own, [HumanMessage("2")])
        assert [m.content for m in way.read(own)] == texts() == ["2"]

    @pytest.mark.parametrize("removal", [clear, purge, purge_and_create])
    def test_is_not_written_back_after_a_removal_by_another(self, way, removal):
        way.add(open_history(), [HumanMessage("0")])
        own = open_history()
        way.read(own)
        removal()
        for _ in range(2):
            with pytest.raises(HistoryCleared):
                way.add(own, [HumanMessage("1")])
            with pytest.raises(HistoryCleared):
                way.read(own)
        assert texts() == (["new"] if removal is purge_and_create else [])

    def test_without_a_session_it_is_fenced_from_its_first_message_on(self, way):
        own = open_history()
        way.read(own)
        way.add(own, [HumanMessage("1")])
        purge_and_create()
        with pytest.raises(HistoryCleared):
            way.add(own, [HumanMessage("2")])

    def test_shows_a_row_that_cannot_be_read_among_the_others(self, way):
        way.add(open_history(), [HumanMessage(text) for text in "1234"])
        for seq, body in ((2, "{broken"), (3, "[" * 5_000 + "]" * 5_000)):
            Message.stored.filter(seq=seq).update(body=body)
        messages = way.read(open_history())
        assert [message.content for message in messages] == ["1", "2", "3", "4"]
        assert [bool(message.additional_kwargs) for message in messages] == [
            False,
            True,
            True,
            False,
        ]


class TestAdding:
    @pytest.mark.parametrize("message", ["text", None, {"role": "user"}, 5])
    def test_an_invalid_message_refuses_the_whole_batch(self, way, message):
        with pytest.raises(
            BadInput,
            match=rf"messages\[1\] must be a LangChain message, not {type(message).__name__}",
        ):
            way.add(open_history(), [HumanMessage("hi"), message])
        assert texts() == []

    @pytest.mark.parametrize("message", [RemoveMessage(id="1"), ChatMessage(content="", role="x")])
    def test_a_message_with_an_unknown_role_is_refused_by_its_name(self, way, message):
        with pytest.raises(BadInput, match=rf"messages\[0\] is a {type(message).__name__}"):
            way.add(open_history(), [message])

    def test_a_value_that_json_cannot_represent_is_refused_with_its_path(self, way):
        message = AIMessage("", additional_kwargs={"a": [{1, 2}]})
        with pytest.raises(BadInput, match=r"messages\[1\]\.additional_kwargs\.a\[0\]"):
            way.add(open_history(), [HumanMessage("hi"), message])
        assert texts() == []

    def test_an_empty_list_stores_nothing_and_uses_no_seq(self, way):
        way.add(open_history(), [])
        assert not Session.objects.exists()

        for messages in ([HumanMessage("1")], [], [HumanMessage("2")]):
            way.add(open_history(), messages)
        assert list(Message.objects.in_order().values_list("seq", flat=True)) == [1, 2]

    def test_any_role_is_stored(self, way):
        messages = [
            SystemMessage("be kind"),
            ToolMessage("a result that nobody asked for", tool_call_id="unknown"),
            AIMessage([{"type": "hologram", "data": 1}]),
        ]
        way.add(open_history(), messages)
        assert way.read(open_history()) == messages

    def test_known_blocks_are_kept_and_unknown_ones_flagged(self, way):
        image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
        content: Any = [{"type": "text", "text": "look"}, image, {"type": "hologram", "data": 1}]
        way.add(open_history(), [HumanMessage(content)])
        (message,) = way.read(open_history())
        assert message.content == content
        assert Message.objects.get().plain()["unknown_blocks"] == ["hologram"]

    def test_a_file_url_is_rejected(self, way):
        block = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
        with pytest.raises(BadInput, match=r"messages\[0\]\.content\[1\]"):
            way.add(open_history(), [HumanMessage(["look", block])])
        assert texts() == []

    @pytest.mark.regression
    def test_a_long_answer_is_refused_and_nothing_stored(self, way, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "MAX_REPLY_CHARS": 5}
        with pytest.raises(BadInput) as caught:
            way.add(open_history(), [HumanMessage("a"), AIMessage("1234567")])
        assert caught.value.code == "too_large"
        assert texts() == []

    def test_the_same_ids_again_are_stored_once(self, way):
        own = open_history()
        way.read(own)
        batch = [HumanMessage("1", id="a"), AIMessage("2", id="b")]
        for _ in range(2):
            way.add(own, batch)
            way.add(open_history(), batch)
        assert [m.content for m in way.read(own)] == texts() == ["1", "2"]

        with pytest.raises(Conflict):
            way.add(open_history(), [HumanMessage("other", id="a"), batch[1]])

    def test_messages_without_ids_are_stored_each_time(self, way):
        for _ in range(2):
            way.add(open_history(), [HumanMessage("1"), AIMessage("2", id="b")])
        assert texts() == ["1", "2"] * 2

    def test_a_thousand_are_one_batch_and_more_are_refused(self, way):
        with pytest.raises(BadInput) as caught:
            way.add(open_history(), [HumanMessage("x")] * 10_000)
        assert (caught.value.code, caught.value.limit) == ("too_many", 1_000)

        way.add(open_history(), [HumanMessage("x")] * 1_000)
        seqs = Message.objects.in_order().values_list("seq", flat=True)
        assert list(seqs) == list(range(1, 1_001))

    def test_is_rolled_back_with_the_transaction_of_the_caller(self):
        def add_and_fail() -> None:
            with transaction.atomic():
                open_history().add_messages([HumanMessage("gone")])
                raise RuntimeError

        with pytest.raises(RuntimeError):
            add_and_fail()
        with transaction.atomic():
            open_history().add_messages([HumanMessage("stays")])
        assert texts() == ["stays"]

    async def test_in_an_event_loop_the_sync_methods_name_their_async_versions(self):
        with pytest.raises(SynchronousOnlyOperation, match=r"`await aget_messages\("):
            _ = open_history().messages
        with pytest.raises(SynchronousOnlyOperation, match=r"`await aadd_messages\("):
            open_history().add_messages([HumanMessage("x")])
        with pytest.raises(SynchronousOnlyOperation, match=r"`await aclear\("):
            open_history().clear()

    def test_a_failure_is_raised_once_more_and_then_the_history_works(self, way, failures):
        own = open_history()
        with pytest.raises(BadInput):
            way.add(own, [HumanMessage("\ud800")])
        assert len(failures) == 1
        with pytest.raises(BadInput):
            way.read(own)
        way.add(own, [HumanMessage("1")])
        assert [m.content for m in way.read(own)] == ["1"]


@pytest.mark.django_db(transaction=True)
class TestWithoutDatabase:
    @pytest.fixture(autouse=True)
    def _on_this_connection(self, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "DB_THREADS": 0}

    def test_a_save_is_unavailable_now_and_at_the_next_use(self, way, failures):
        own = open_history()
        way.add(own, [HumanMessage("1")])
        with (
            connection.execute_wrapper(refuse),
            pytest.raises(MemoryUnavailable),
        ):
            way.add(own, [HumanMessage("2")])
        assert [failure["error"] for failure in failures] == ["unavailable"]
        with pytest.raises(MemoryUnavailable):
            way.read(own)
        assert texts() == ["1"]

    def test_a_failed_read_is_not_an_empty_history(self, way):
        own = open_history()
        way.add(own, [HumanMessage("1")])
        with (
            connection.execute_wrapper(refuse),
            pytest.raises(MemoryUnavailable),
        ):
            way.read(own)
        assert [m.content for m in way.read(own)] == ["1"]


def refuse(*args: object) -> None:
    raise OperationalError


def test_in_a_run_of_its_own_session_it_is_empty_and_stores_nothing(way, caplog):
    way.add(open_history(), [HumanMessage("1")])
    forget_logged()
    admitted = services.admit_turn(
        session_key="s", client_id="t", content="2", owner="test", **SERVER
    )
    own = open_history()
    assert admitted.claim is not None
    with run_context(admitted.claim, {}):
        for _ in range(2):
            assert way.read(own) == []
            way.add(own, [HumanMessage("3")])
            way.clear(own)
        way.add(open_history("other"), [HumanMessage("elsewhere")])
    assert texts() == ["1", "2"]
    assert texts("other") == ["elsewhere"]
    assert [record.name for record in caplog.records] == [history.__name__]


def run_turn(client_id: str, replaces: int | None = None) -> None:
    """Run a turn; with `replaces` it supersedes the rows from this user row on."""
    admitted = services.admit_turn(
        session_key="s",
        client_id=client_id,
        content=client_id,
        owner="me",
        replaces=replaces,
        expect_seq=replaces,
        **SERVER,
    )
    assert admitted.claim is not None
    progress.finish_turn(
        claim=admitted.claim, status="complete", message={"role": "assistant", "content": "done"}
    )


def test_superseded_messages_are_omitted(way):
    open_history().add_messages([HumanMessage("a"), AIMessage("b")])
    run_turn("one")
    run_turn("two", replaces=3)
    assert [message.content for message in way.read(open_history())] == ["a", "b", "two", "done"]


BODIES = [
    None,
    "",
    "{broken",
    '{"role":"user","content":"as stored","id":"1"}',
    '{"role":"assistant","content":[{"type":"text","text":"a"}],"tool_calls":[]}',
    '{"role":"tool","content":"4","tool_call_id":"c","artifact":[1]}',
    '{"role":"user","content":"an earlier placeholder","quarantined":true}',
]
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool", "unknown"]),
            "text": st.sampled_from(["", "text", "\ufffd \u202e"]),
            "body": st.sampled_from(BODIES),
            "redacted": st.booleans(),
            "quarantined": st.booleans(),
        }
    ),
    max_size=8,
)
PLAIN: list[dict[str, Any]] = [{"role": "user", "text": text} for text in "abc"]
SEQ = st.integers(1, 8)
RANGES = st.lists(st.tuples(SEQ, SEQ, SEQ), max_size=2)


@pytest.mark.slow
@hypothesis.settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, floor=SEQ, ranges=RANGES)
@example(rows=PLAIN, floor=2, ranges=[(1, 2, 3)])
@example(rows=PLAIN, floor=1, ranges=[(1, 1, 4)])  # by a turn that started after the read
def test_reads_what_the_whole_rows_contain(way, rows, floor, ranges):
    """Superseded rows and those below the floor are omitted; all others are converted exactly."""
    Turn.objects.all().delete(), Message.stored.all().delete(), Session.objects.all().delete()
    highest = max((end for _, end, _ in ranges), default=0)
    session = make_session(
        "s", last_seq=len(rows), first_seq=min(floor, len(rows) + 1), superseded_to=highest
    )
    Message.stored.bulk_create(
        Message(session=session, seq=seq, tokens=1, **row) for seq, row in enumerate(rows, 1)
    )
    for number, (start, end, user_seq) in enumerate(ranges):
        Turn.objects.create(
            session=session,
            client_id=str(number),
            status="complete",
            user_seq=user_seq,
            replaces_from=start,
            replaces_to=end,
            epoch=session.epoch,
        )
    page = services.read_history(session_key="s", superseded=False, **SERVER)
    assert way.read(open_history()) == [to_langchain(row.plain()) for row in page.rows]


def test_reads_only_the_columns_that_it_uses():
    open_history().add_messages([HumanMessage("a")])
    with CaptureQueriesContext(connection) as queries:
        texts()
    (query,) = queries.captured_queries
    selected, _, _ = query["sql"].partition(" FROM ")
    assert "text" in selected
    assert not [name for name in ("created_at", "tokens", "client_id") if name in selected]


def test_turns_are_read_only_if_one_superseded_messages(django_assert_num_queries):
    open_history().add_messages([HumanMessage("a"), AIMessage("b")])
    run_turn("none")
    with django_assert_num_queries(1):
        texts()
    run_turn("one", replaces=3)
    with django_assert_num_queries(2):
        assert texts() == ["a", "b", "one", "done"]


def test_a_turn_that_starts_after_the_read_of_a_page_supersedes_nothing_in_it():
    open_history().add_messages([HumanMessage("a"), AIMessage("b")])
    run_turn("one", replaces=1)
    page = services.read_history(session_key="s", **SERVER)
    run_turn("two", replaces=3)
    assert sessions._without_superseded(page).rows == page.rows[2:]
