"""Summaries of LangChain's middleware are made once, and the session keeps them."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from django.utils.module_loading import import_string
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from chatmemory import services
from chatmemory.langchain import DjangoChatMessageHistory, with_memory
from chatmemory.langgraph.models import SessionState
from chatmemory.models import Message, Session
from tests.factories import TALK, make_messages, make_session
from tests.langgraph.turns import send, use_graph

__all__ = ["use_graph"]

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.slow]

TURNS = 50


class Model(BaseChatModel):
    """Repeats the question, or calls a tool for `look`; records what it is given."""

    given: list[list[BaseMessage]]

    @property
    def _llm_type(self) -> str:
        return "recording"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        self.given.append(list(messages))
        text = str(messages[-1].content)
        reply = AIMessage(f"reply to {text}")
        if isinstance(messages[-1], HumanMessage) and text.startswith("look"):
            name = f"call{len(self.given)}"
            reply.tool_calls = [{"name": "look", "args": {}, "id": name, "type": "tool_call"}]
        return ChatResult(generations=[ChatGeneration(message=reply)])


class Summarizer(Model):
    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        self.given.append(list(messages))
        reply = AIMessage(f"summary {len(self.given)}")
        return ChatResult(generations=[ChatGeneration(message=reply)])


@tool
def look() -> str:
    """Look."""
    return "seen"


def agent(
    trigger: int = 12, keep: int = 4, **options: Any
) -> tuple[Any, list[list[BaseMessage]], list[list[BaseMessage]]]:
    """Return an agent that summarizes, what its model gets, and what the summarizer gets."""
    model, summarizer = Model(given=[]), Summarizer(given=[])
    middleware = import_string("langchain.agents.middleware.SummarizationMiddleware")(
        summarizer, trigger=("messages", trigger), keep=("messages", keep)
    )
    create_agent = import_string("langchain.agents.create_agent")  # mypy crashes on its import
    made = create_agent(model, tools=[look], middleware=[middleware], **options)
    return made, model.given, summarizer.given


def payload(messages: list[BaseMessage]) -> list[tuple[object, ...]]:
    """Return what a provider gets."""
    return [(m.type, m.content, str(getattr(m, "tool_calls", ""))) for m in messages]


def summaries(prompts: list[list[BaseMessage]]) -> list[str]:
    found = [str(m.content) for messages in prompts for m in messages if "summary " in m.content]
    return list(dict.fromkeys(found))


def breaks(prompts: list[list[BaseMessage]]) -> int:
    """Count the prompts that do not continue the one before."""
    return sum(
        payload(after)[: len(before)] != payload(before) for before, after in pairwise(prompts)
    )


@pytest.fixture(autouse=True)
def talk() -> Session:
    return make_session()


@pytest.mark.parametrize("text", ["question", "look"])
def test_a_summary_is_made_once_and_the_prompts_only_grow(use_graph, text):
    made, given, summarized = agent(system_prompt="Be brief.")
    use_graph(made)
    for number in range(TURNS):
        assert send(f"{text} {number}").status == "complete"
    assert 5 < len(summarized) <= 2 * TURNS / 8 + 1 if text == "question" else summarized
    assert len(summaries(given)) == breaks(given) == len(summarized)
    assert SessionState.objects.count() == 1


def test_another_process_gets_the_summary(use_graph):
    for number in range(8):
        made, given, summarized = agent()
        use_graph(made)
        send(f"question {number}")
    assert summarized == []
    assert summaries(given) != []


def test_with_memory_stores_no_message_again_that_the_summary_left():
    made, _, summarized = agent(trigger=5, keep=2)
    chain = with_memory(
        made,
        partial(DjangoChatMessageHistory, "of-an-agent", owner=None),
        input_messages_key="messages",
        output_messages_key="messages",
    )
    for number in range(6):
        chain.invoke({"messages": f"question {number}"})
    assert summarized
    stored = Message.stored.filter(session__key="of-an-agent").order_by("seq")
    assert list(stored.values_list("role", "text")) == [
        row
        for number in range(6)
        for row in (
            ("user", f"question {number}"),
            ("assistant", f"reply to question {number}"),
        )
    ]


def test_a_state_names_the_last_message_that_the_summary_replaces(use_graph):
    use_graph(agent(trigger=5, keep=3)[0])
    for number in range(3):
        send(f"question {number}")
    row = SessionState.objects.get()
    assert (row.low, row.high) == (1, 2)
    assert Message.stored.get(seq=3).text == "question 1"


def test_a_turn_without_a_new_summary_stores_none(use_graph):
    use_graph(agent(trigger=6, keep=1)[0])
    for number in range(4):
        send(f"question {number}")
    row = SessionState.objects.get()
    send("hi")
    assert SessionState.objects.get() == row


def test_a_summary_within_a_turn_names_a_message_of_it(use_graph):
    use_graph(agent(trigger=3, keep=1)[0])
    send("look")  # the call and its result are kept
    row = SessionState.objects.get()
    assert (row.low, row.high) == (1, 1)
    made, given, _ = agent(trigger=30)
    use_graph(made)
    send("hi")
    assert [m.type for m in given[0]] == ["human", "ai", "tool", "ai", "human"]


def test_a_redaction_removes_the_summary_and_the_next_turn_makes_another(use_graph):
    made, _, summarized = agent(trigger=5, keep=3)
    use_graph(made)
    for number in range(3):
        send(f"question {number}")
    services.redact_message(**TALK, seq=1, reason="")
    assert not SessionState.objects.exists()
    send("hi")
    assert len(summarized) == 2
    assert ">question 0<" in str(summarized[0])
    assert ">question 0<" not in str(summarized[1])


def test_after_a_restore_the_model_gets_the_messages_that_the_summary_does_not_contain(use_graph):
    services.append_messages(**TALK, messages=make_messages("old", "older", "c", "d"))
    trimmed = services.trim_session(**TALK, before_seq=3, reason="")
    use_graph(agent(trigger=5, keep=3)[0])
    for number in range(3):
        send(f"question {number}")
    assert SessionState.objects.get().low == 3
    assert trimmed is not None
    at = {"by": TALK["by"], "scope": TALK["scope"]}
    services.restore_session(entry_pk=trimmed.pk, **at, reason="")
    made, given, _ = agent(trigger=30)
    use_graph(made)
    send("hi")
    assert [m.content for m in given[0]][:3] == ["old", "older", "c"]


def test_another_graph_gets_the_messages_and_not_the_summary(use_graph):
    use_graph(agent(trigger=5, keep=3)[0])
    for number in range(3):
        send(f"question {number}")
    model = Model(given=[])
    use_graph(import_string("langchain.agents.create_agent")(model, tools=[]))
    send("hi")
    assert [m.content for m in model.given[0]][:2] == ["question 0", "reply to question 0"]


def test_the_system_prompt_stays_before_the_summary(use_graph, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "INSTRUCTIONS": "Be brief."}
    made, given, summarized = agent(trigger=6, keep=1)
    use_graph(made)
    for number in range(4):
        send(f"question {number}")
    assert len(summarized) == 1
    assert [m.type for m in given[-1]][:2] == ["system", "human"]
    assert "summary 1" in given[-1][1].content
