"""Compiled graphs as responders: their rows, their progress, and their questions."""

from __future__ import annotations

import json
import operator
import uuid
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from django.utils.module_loading import import_string
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from chatmemory import services
from chatmemory.codec import UNKNOWN_OUTCOME, Question
from chatmemory.live.runner import runner
from chatmemory.models import Message, Session, Turn
from chatmemory.responders import Finished, Progress, Request, Text, finding
from chatmemory.responders.graphs import ASKED_FIRST, DEFAULT_QUESTION, _TextStreams
from chatmemory.services import Actor
from chatmemory.services.turns import progress, recovery
from chatmemory.window import read_window
from tests import responders_for_tests
from tests.factories import make_session
from tests.scripted import ScriptedModel, calling
from tests.servers import DEADLINE, own_threads, wait_for

pytestmark = pytest.mark.django_db

BY: dict[str, Any] = {"by": Actor.server("test"), "scope": services.SERVER}
MADE: dict[str, Any] = {}
"""The graph of the test."""


def responder(session: Session) -> Any:
    return MADE["graph"]


@pytest.fixture(autouse=True)
def _graph(settings, monkeypatch):
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "RESPONDER": "tests.responders.test_graphs.responder",
        "SENDS_PER_MINUTE": None,
    }
    yield
    MADE.clear()
    finding._find_responder.cache_clear()


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"Rain in {city}."


@tool
def broken(city: str) -> str:
    """Fails."""
    raise RuntimeError("secret words")


@tool
def remove(name: str) -> str:
    """Removes a file, if the user agrees."""
    return f"{name}: {interrupt({'question': f'Remove {name}?', 'choices': ['yes', 'no']})}"


def agent(*replies: AIMessage, **options: Any) -> ScriptedModel:
    """Use an agent of LangChain as the responder; return its model."""
    model = ScriptedModel(replies=list(replies), given=[])
    create_agent = import_string("langchain.agents.create_agent")  # mypy crashes on its import
    MADE["graph"] = create_agent(model, tools=[weather, broken, remove, slow], **options)
    return model


def flow(*nodes: Callable[..., Any], state: Any = MessagesState, **options: Any) -> None:
    """Use a graph with these nodes in sequence as the responder."""
    graph = StateGraph(state)
    for before, node in zip([None, *nodes], nodes, strict=False):
        graph.add_node(node.__name__, node)
        graph.add_edge(before.__name__ if before else START, node.__name__)
    graph.add_edge(nodes[-1].__name__, END)
    MADE["graph"] = graph.compile(**options)


def send_and_run(text: str, client_id: str = "", *, key: str = "talk") -> Turn:
    """Send a message, and run its turn to the end."""
    Session.objects.filter(key=key).exists() or make_session(key)
    turn = send(text, client_id or uuid.uuid4().hex, key=key)
    runner.run(turn.session_id)
    turn.refresh_from_db()
    return turn


def send(text: str, client_id: str, *, key: str = "talk", **more: Any) -> Turn:
    services.admit_turn(session_key=key, client_id=client_id, content=text, **BY, **more)
    return Turn.objects.get(client_id=client_id, session__key=key)


def rows(**of: Any) -> list[tuple[str, str]]:
    return list(Message.stored.filter(**of).in_order().values_list("role", "text"))


def last(**of: Any) -> Any:
    return [*Message.stored.filter(**of).in_order()][-1]


def question() -> Question | None:
    return Question.of(last().plain())


# Rows


def test_calls_results_and_the_reply_are_stored_once_and_in_order():
    agent(
        calling(
            ("weather", {"city": "Rome"}, "a"), ("weather", {"city": "Oslo"}, "b"), text="I look. "
        ),
        AIMessage("Rain."),
    )
    assert send_and_run("How is it in Rome and Oslo?").status == "complete"
    asked, called, *results, reply = rows()
    assert asked == ("user", "How is it in Rome and Oslo?")
    assert called == ("assistant", "I look. ")
    assert sorted(results) == [("tool", "Rain in Oslo."), ("tool", "Rain in Rome.")]
    assert reply == ("assistant", "Rain. ")
    assert list(Message.stored.in_order().values_list("seq", "turn")) == [
        (seq, 1) for seq in range(1, 6)
    ]
    plain = {row.text: row.plain() for row in Message.stored.in_order()}
    assert [call["id"] for call in plain["I look. "]["tool_calls"]] == ["a", "b"]
    assert plain["Rain in Rome."]["tool_call_id"] == "a"


def test_the_next_turn_gets_messages_that_a_provider_accepts():
    model = agent(calling(("weather", {"city": "Rome"}, "a")), AIMessage("Rain."), AIMessage("No."))
    send_and_run("How is it?")
    assert send_and_run("Shall I go?").status == "complete"
    assert [type(m).__name__ for m in model.given[-1]] == [
        "HumanMessage",
        "AIMessage",
        "ToolMessage",
        "AIMessage",
        "HumanMessage",
    ]


def test_a_tool_that_fails_fails_the_turn_and_leaves_no_call_open(caplog):
    model = agent(
        calling(("broken", {"city": "Rome"}, "a")), AIMessage("never said"), AIMessage("Well.")
    )
    turn = send_and_run("How is it?")
    assert (turn.status, turn.error) == ("failed", "responder_error")
    assert [role for role, _ in rows()] == ["user", "assistant", "tool", "assistant"]
    assert "secret" not in str(rows())
    model.replies[1] = AIMessage("Well.")
    assert send_and_run("And now?").status == "complete"


def test_a_call_that_a_tool_refuses_has_the_error_as_its_result():
    agent(calling(("weather", {"town": 1}, "a"), ("nothing", {}, "b")), AIMessage("I can't."))
    assert send_and_run("How is it?").status == "complete"
    results = [row.plain() for row in Message.stored.filter(role="tool").in_order()]
    assert [result["tool_status"] for result in results] == ["error", "error"]


def test_a_graph_that_stops_at_a_breakpoint_leaves_no_call_open():
    model = agent(
        calling(("weather", {"city": "Rome"}, "a")),
        AIMessage("Well."),
        checkpointer=InMemorySaver(),
        interrupt_before=["tools"],
    )
    assert send_and_run("How is it?").status == "complete"
    assert rows()[-2:] == [
        ("tool", UNKNOWN_OUTCOME),
        ("assistant", ""),
    ]
    assert question() is None
    assert send_and_run("And?").status == "complete"
    assert len(model.given) == 2


class Added(TypedDict):
    messages: Annotated[list[Any], operator.add]


@pytest.mark.parametrize("is_dict", [True, False])
def test_a_message_that_a_later_node_repeats_is_stored_once(is_dict):
    def start(state: Any) -> Any:
        return {"messages": [{"role": "assistant", "content": "A"} if is_dict else AIMessage("A")]}

    def repeat(state: Any) -> Any:
        return {"messages": [*state["messages"], AIMessage("B")]}

    flow(start, repeat)
    send_and_run("hi")
    assert [text for _, text in rows()] == ["hi", "A", "B"]


def test_equal_texts_of_two_messages_are_two_messages():
    def one(state: Any) -> Any:
        return {"messages": [{"role": "assistant", "content": "A"}]}

    def two(state: Any) -> Any:
        return {"messages": [{"role": "assistant", "content": "A"}]}

    flow(one, two, state=Added)
    send_and_run("hi")
    assert [text for _, text in rows()] == ["hi", "A", "A"]


def test_a_workflow_of_functions_is_a_graph_too():
    model = ScriptedModel(replies=[AIMessage("Fine.")], given=[])

    async def call(messages: list[BaseMessage]) -> Any:
        return await model.ainvoke(messages)

    async def workflow(given: Any) -> Any:
        return await task(call)(given["messages"])

    MADE["graph"] = entrypoint()(workflow)
    send_and_run("hi")
    assert rows() == [("user", "hi"), ("assistant", "Fine. ")]


@tool
async def slow(city: str) -> str:
    """Wait until the test sets GO."""
    return "".join([word async for word in responders_for_tests.slow([], Session())])


@pytest.mark.django_db(transaction=True)
def test_an_agent_that_is_stopped_in_the_middle_of_a_tool_leaves_no_call_open(
    settings, monkeypatch
):
    monkeypatch.setattr("chatmemory.live.runner.runner.keeper.seconds", 0.1)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "DB_THREADS": 4}
    agent(calling(("slow", {"city": "Rome"}, "a"), text="I look."))
    make_session()
    with own_threads():
        runner.enable()
        turn = send("hi", "c1")
        assert responders_for_tests.BEGUN.wait(DEADLINE)
        services.stop_turn(session_key="talk", turn="c1", **BY)
        wait_for(lambda: Turn.objects.get(pk=turn.pk).ended_at is not None, "the turn does not end")
    assert list(Message.stored.in_order().values_list("role", "text", "status")) == [
        ("user", "hi", "complete"),
        ("assistant", "I look. ", "complete"),
        ("tool", UNKNOWN_OUTCOME, "interrupted"),
        ("assistant", "", "interrupted"),
    ]


# Progress


async def steps(text: str = "hi") -> list[Any]:
    """Return the steps of the graph's reply, before they are stored."""
    session = Session(scope="server", key="talk")
    asked = Request(session=session, turn="turn-1", messages=[{"role": "user", "content": text}])
    async with aclosing(finding.find()(asked)) as items:
        return [item async for item in items]


async def test_the_start_and_end_of_tools_are_reported():
    agent(calling(("weather", {"city": "Rome"}, "a"), ("nothing", {}, "b")), AIMessage("Rain."))
    told = [step for step in await steps() if isinstance(step, Progress)]
    named = [(event.name, event.state) for event in told]
    assert named[:2] == [("weather", "started"), ("nothing", "started")]
    assert sorted(named[2:]) == [("nothing", "failed"), ("weather", "ended")]


async def test_a_node_may_report_progress():
    def search(state: Any) -> Any:
        get_stream_writer()(Progress("tool", "search", "page 3 of 7"))
        get_stream_writer()({"not": "ours"})
        return {"messages": [AIMessage("Found.")]}

    flow(search)
    told, said = await steps()
    assert told == Progress("tool", "search", "page 3 of 7")
    assert said.message["content"] == "Found."


def test_one_of_two_concurrent_models_is_streamed():
    streams, texts = _TextStreams(), []
    for name, text, position in (
        ("a", "So ", None),
        ("b", "No ", None),
        ("a", "far.", "last"),
        ("b", "way.", None),
        ("c", "Next.", None),
    ):
        chunk = AIMessageChunk(content=text, id=name, chunk_position=position)
        texts += [step.text for step in streams.steps(chunk) if isinstance(step, Text)]
    assert texts == ["So ", "far.", "Next."]


async def test_both_of_two_concurrent_models_are_stored():
    graph = StateGraph(MessagesState)
    for name in ("ann", "bob"):
        model = ScriptedModel(replies=[AIMessage(" ".join([name] * 5))], given=[])
        graph.add_node(name, _asking_model(model))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    MADE["graph"] = graph.compile()
    said = await steps()
    finished = [step.message["content"] for step in said if isinstance(step, Finished)]
    assert sorted(map(str, finished)) == ["ann " * 5, "bob " * 5]


async def test_a_model_that_streams_after_another_is_streamed():
    first = ScriptedModel(replies=[AIMessage("a plan")], given=[])
    second = ScriptedModel(replies=[AIMessage("a reply")], given=[])

    async def node(state: Any) -> Any:
        await first.ainvoke(state["messages"])
        return {"messages": [await second.ainvoke(state["messages"])]}

    flow(node)
    said = [step.text for step in await steps() if isinstance(step, Text)]
    assert said == ["a ", "plan ", "a ", "reply "]


def _asking_model(model: ScriptedModel) -> Callable[..., Any]:
    async def node(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return node


# Questions


def order(state: Any) -> Any:
    """Asks two questions in sequence."""
    size = interrupt("Which size?")
    colour = interrupt({"question": "Which colour?", "choices": ["red", "blue"]})
    return {"messages": [AIMessage(f"{size} and {colour}, so be it.")]}


def ordering(**options: Any) -> None:
    flow(order, **{"checkpointer": InMemorySaver(), **options})


def test_a_graph_that_asks_ends_its_turn_with_the_question():
    ordering()
    assert send_and_run("I want a shirt", "c1").status == "complete"
    assert rows() == [("user", "I want a shirt"), ("assistant", "Which size?")]
    asks = question()
    assert asks is not None
    session = Session.objects.get()
    assert asks.thread == f"{session.pk}.{session.epoch}.c1"
    assert [value for _, value in asks.questions] == ["Which size?"]


def test_the_user_is_shown_the_question_and_not_the_thread():
    ordering()
    send_and_run("I want a shirt")
    assert shown()["asks"] == {"value": "Which size?"}
    send_and_run("XL")
    assert shown()["asks"] == {"value": {"question": "Which colour?", "choices": ["red", "blue"]}}
    send_and_run("red")
    assert shown()["asks"] is None


def shown() -> dict[str, object]:
    """Return the last message as clients get it."""
    page = services.read_page(session_key="talk", **BY)
    return page.rows[-1].public()


def test_the_next_message_is_the_answer_and_its_answer_too():
    ordering()
    for text in ("I want a shirt", "XL", "red"):
        assert send_and_run(text).status == "complete"
    assert [text for _, text in rows()] == [
        "I want a shirt",
        "Which size?",
        "XL",
        "Which colour?",
        "red",
        "XL and red, so be it.",
    ]


def test_a_question_is_a_plain_message_to_the_model():
    ordering()
    send_and_run("I want a shirt")
    window = read_window(Session.objects.get()).messages
    assert window[-1] == {"role": "assistant", "content": "Which size?"}


def test_after_the_answers_a_new_thread_starts():
    ordering()
    for text in ("I want a shirt", "XL", "red", "And socks"):
        send_and_run(text, text.replace(" ", "-"))
    asks = question()
    assert asks is not None
    assert asks.thread.endswith(".And-socks")


def test_without_a_checkpointer_the_turn_fails_with_the_reason():
    ordering(checkpointer=False)
    turn = send_and_run("I want a shirt")
    assert (turn.status, turn.error) == ("failed", "no_checkpointer")
    assert (last().status, last().error, last().text) == ("failed", "no_checkpointer", "")
    assert question() is None


def test_a_tool_that_asks_gets_its_answer_and_the_model_valid_messages():
    model = agent(
        calling(("weather", {"city": "Rome"}, "a"), ("remove", {"name": "x"}, "b"), text="So."),
        AIMessage("Done."),
        AIMessage("Bye."),
        checkpointer=InMemorySaver(),
    )
    send_and_run("remove x")
    assert rows() == [
        ("user", "remove x"),
        ("assistant", "So. "),
        ("tool", "Rain in Rome."),
        ("tool", ASKED_FIRST),
        ("assistant", "Remove x?"),
    ]
    send_and_run("yes")
    assert rows(seq__gt=5) == [
        ("user", "yes"),
        ("assistant", ""),
        ("tool", "x: yes"),
        ("assistant", "Done. "),
    ]
    [called, result] = [row.plain() for row in Message.stored.filter(seq__in=(7, 8)).in_order()]
    [call] = called["tool_calls"]
    assert (call["name"], call["args"]) == ("remove", {"name": "x"})
    assert call["id"] == result["tool_call_id"] != "b"
    assert send_and_run("thanks").status == "complete"
    assert len(model.given) == 3


def test_each_of_several_questions_has_its_own_answer():
    agent(
        calling(("remove", {"name": "x"}, "a"), ("remove", {"name": "y"}, "b")),
        AIMessage("Done."),
        AIMessage("Bye."),
        checkpointer=InMemorySaver(),
    )
    send_and_run("remove both")
    first = last().text
    asks = question()
    assert asks is not None
    assert len(asks.questions) == 2
    send_and_run("yes")
    assert {first, last().text} == {"Remove x?", "Remove y?"}
    send_and_run("no")
    name, other = first[7], "y" if first[7] == "x" else "x"
    results = [text for role, text in rows(seq__gt=5) if role == "tool"]
    assert results == [f"{name}: yes", f"{other}: no"]
    assert last().text == "Done. "
    assert send_and_run("thanks").status == "complete"


def _clear() -> None:
    services.clear_session(session_key="talk", reason="test", **BY)


def _trim() -> None:
    services.trim_session(session_key="talk", keep_last=0, reason="test", **BY)


def _redact() -> None:
    services.redact_message(session_key="talk", seq=2, reason="test", **BY)


def _send_in_between() -> None:
    said = [{"role": "assistant", "content": "By the way."}]
    services.append_messages(session_key="talk", messages=said, **BY)


def _lose() -> None:
    MADE["graph"].checkpointer = InMemorySaver()


def _fail() -> None:
    Message.stored.filter(seq=2).update(status=Message.Status.FAILED)


def _quarantine() -> None:
    Message.stored.filter(seq=2).update(quarantined=True)


GONE = [_clear, _trim, _redact, _send_in_between, _lose, _fail, _quarantine]


@pytest.mark.parametrize("happens", GONE)
def test_a_removed_question_is_not_answered(happens):
    ordering()
    send_and_run("I want a shirt", "c1")
    happens()
    send_and_run("XL", "c2")
    assert last().text == "Which size?"
    asks = question()
    assert asks is not None
    assert asks.thread.endswith(".c2")


def test_a_message_from_before_the_question_is_not_an_answer():
    ordering()
    send_and_run("I want a shirt", "c1")
    later = datetime(2100, 1, 1, tzinfo=UTC)
    Message.stored.filter(seq=2).update(created_at=later)
    send_and_run("quickly, please", "c2")
    asks = question()
    assert asks is not None
    assert asks.thread.endswith(".c2")


def test_a_message_that_replaces_the_question_is_not_an_answer():
    ordering()
    send_and_run("I want a shirt", "c1")
    turn = send("I want socks", "c2", replaces=1, expect_seq=1)
    runner.run(turn.session_id)
    asks = question()
    assert asks is not None
    assert asks.thread.endswith(".c2")


def test_a_new_thread_starts_after_a_worker_died_with_the_answer():
    ordering()
    send_and_run("I want a shirt", "c1")
    admitted = services.admit_turn(
        session_key="talk", client_id="c2", content="XL", owner="dead", **BY
    )
    assert admitted.claim is not None
    progress.start_turn(claim=admitted.claim)
    Turn.objects.filter(client_id="c2").update(lease_until=datetime(2020, 1, 1, tzinfo=UTC))
    recovery.recover_overdue_turn(admitted.session_pk)
    send_and_run("still there?", "c3")
    asks = question()
    assert asks is not None
    assert asks.thread.endswith(".c3")


def test_turns_with_the_same_client_id_in_two_sessions_are_two_threads():
    ordering()
    send_and_run("I want a shirt", "c1", key="ann")
    send_and_run("I want socks", "c1", key="bob")
    send_and_run("XL", "c2", key="ann")
    assert last(session__key="bob").text == "Which size?"
    assert last(session__key="ann").text == "Which colour?"
    saver = MADE["graph"].checkpointer
    threads = {found.config["configurable"]["thread_id"] for found in saver.list(None)}
    assert len(threads) == 2


def test_a_question_that_was_copied_to_another_session_is_not_answered_there():
    ordering()
    send_and_run("I want a shirt", "c1", key="ann")
    make_session("bob")
    copied = [row.plain() for row in Message.stored.filter(session__key="ann").in_order()]
    services.append_messages(session_key="bob", messages=copied, **BY)
    send_and_run("XXL", "c2", key="bob")
    assert last(session__key="bob").text == "Which size?"
    send_and_run("XL", "c2", key="ann")
    send_and_run("red", "c3", key="ann")
    assert last(session__key="ann").text == "XL and red, so be it."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Sure?", "Sure?"),
        ({"question": "Sure?", "n": 1}, "Sure?"),
        ({"prompt": " ", "description": "Sure?"}, "Sure?"),
        ({"n": 1}, '{"n":1}'),
        ([1, 2], "[1,2]"),
        (None, DEFAULT_QUESTION),
        ("  ", DEFAULT_QUESTION),
        ({}, DEFAULT_QUESTION),
        ("a\0b", "a\ufffdb"),
        (
            {"question": "When?", "day": datetime(2026, 1, 2, tzinfo=UTC), "n": float("nan")},
            "When?",
        ),
    ],
)
def test_a_question_of_any_shape_has_a_text(value, text):
    def node(state: Any) -> Any:
        return {"messages": [AIMessage(f"You said {interrupt(value)}.")]}

    flow(node, checkpointer=InMemorySaver())
    assert send_and_run("hi").status == "complete"
    assert last().text == text
    assert send_and_run("yes").status == "complete"
    assert last().text == "You said yes."


def test_a_long_question_is_truncated():
    def node(state: Any) -> Any:
        interrupt({"question": "Sure?", "all": "x" * 100_000})

    flow(node, checkpointer=InMemorySaver())
    send_and_run("hi")
    asks = question()
    assert asks is not None
    assert len(json.dumps(asks.plain())) < 20_000


@pytest.mark.parametrize(
    "asks",
    [1, {}, {"thread": "t"}, {"thread": 1, "interrupts": []}, {"thread": "t", "interrupts": [1]}],
)
def test_an_invalid_question_is_ignored(asks):
    ordering()
    make_session()
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Well?", "asks": asks},
    ]
    services.append_messages(session_key="talk", messages=said, **BY)
    assert shown()["asks"] is None
    assert send_and_run("XL", "c1").status == "complete"
    assert last().text == "Which size?"
