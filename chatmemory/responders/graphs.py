"""LangGraph's compiled graphs as responders: agents, their tools, and what they ask the user.

Importing this module imports LangGraph.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ToolMessage,
    convert_to_messages,
)
from langgraph.types import Command

from chatmemory import codec
from chatmemory.codec import Asks, text_of
from chatmemory.errors import NoCheckpointer
from chatmemory.langchain import to_langchain, to_plain
from chatmemory.responders.runnables import Thought, closing, config_of
from chatmemory.responders.values import Finished, Progress, Request, Responder, Step, Text

logger = logging.getLogger(__name__)

ASKED_FIRST = "The user is asked first; what came of this call follows the answer."
"""The result of a tool call that waits for an answer of the user."""
GO_ON = "I need your answer to go on."
"""Asked, where an interrupt's value says nothing."""
MAX_ASKED_CHARS = 16_000
"""Longest value of an interrupt, as JSON; of a longer one the beginning is kept, as text."""
QUESTION_KEYS = ("question", "message", "text", "prompt", "description")
"""Where the value of an interrupt may have its question in words; the first that is there."""


def from_graph(graph: Any) -> Responder:
    """Adapt a compiled graph: it is given `messages`, with the turn as its thread."""
    return partial(_graph_answers, graph)


async def _graph_answers(graph: Any, request: Request) -> AsyncGenerator[Step, None]:
    """Run a graph on the turn's thread, or on the one whose question this message answers."""
    begin = await _beginning(graph, request)
    said, voice = _Said(begin), _Voice()
    interrupts: dict[str, object] = {}
    config, modes = config_of(request, begin.thread), ["messages", "updates", "custom"]
    async with closing(graph.astream(begin.given, config, stream_mode=modes)) as outputs:
        async for mode, data in outputs:
            steps: Iterable[Step] = ()
            match mode, data:
                case "messages", (AIMessageChunk() as chunk, _):
                    steps = said.before(voice.steps(chunk))
                case "updates", {"__interrupt__": found}:
                    interrupts |= {one.id: one.value for one in found}
                case "updates", _:
                    steps = chain.from_iterable(map(said.steps, begin.updated(data)))
                case "custom", Progress():
                    steps = [data]
            for step in steps:
                yield step
    for step in said.let_go():
        yield step
    if interrupts:
        if not getattr(graph, "checkpointer", True):
            raise NoCheckpointer
        for step in said.results_for_open_calls():
            yield step
        yield Finished(_asking(begin.thread, interrupts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    """Where a run of a graph begins."""

    thread: str
    given: object
    messages: Sequence[BaseMessage]
    """Those that are not new."""
    is_resumed: bool

    def updated(self, update: Mapping[str, Any]) -> Iterator[BaseMessage]:
        """The model's and tools' messages in what nodes and tasks have just made."""
        is_again = self.is_resumed and "__metadata__" in update  # made before the question
        for made in update.values():
            for change in made if isinstance(made, list) else [made]:
                for message in _messages(change):
                    if isinstance(message, AIMessage | ToolMessage) and (
                        message.id or not is_again
                    ):
                        yield message


def _messages(change: object) -> list[BaseMessage]:
    match change:
        case BaseMessage():
            found = [change]
        case {"messages": list(found)}:
            pass
        case {"messages": one}:
            found = [one]
        case _:
            return []
    for message in found:
        if isinstance(message, BaseMessage):
            message.id = message.id or str(uuid.uuid4())  # which the graph's state keeps
    return convert_to_messages(found)


async def _beginning(graph: Any, request: Request) -> _Beginning:
    messages = list(map(to_langchain, request.messages))
    for message in messages:
        message.id = message.id or str(uuid.uuid4())
    if request.answers is not None:
        thread = request.answers.thread
        state = await graph.aget_state(config_of(request, thread))
        waiting = {interrupt.id for interrupt in state.interrupts}
        if asked := [name for name, _ in request.answers.questions if name in waiting]:
            # One at a time: a "yes" to the first of two questions is none to the second.
            answer: object = Command(resume={asked[0]: text_of(request.messages[-1]["content"])})
            before = _messages(state.values)
            return _Beginning(thread=thread, given=answer, messages=before, is_resumed=True)
        logger.warning("turn %s: its graph waits for no answer any more", request.turn)
    given = {"messages": messages}
    return _Beginning(thread=request.thread, given=given, messages=messages, is_resumed=False)


class _Voice:
    """What models stream, one at a time: the words of two at once would be mixed up."""

    def __init__(self) -> None:
        self._speaker: str | None = None
        self._thought = Thought()
        self._unheard: set[str | None] = set()

    def steps(self, chunk: AIMessageChunk) -> Iterator[Text | Progress]:
        if self._speaker not in (None, chunk.id):
            self._unheard.add(chunk.id)
        if chunk.id in self._unheard:
            return
        if self._speaker is None:
            self._thought = Thought()
        self._speaker = None if chunk.chunk_position == "last" else chunk.id
        yield from self._thought.steps(chunk)


class _Said:
    """The messages of a run, each once, and what its tools are at."""

    def __init__(self, begin: _Beginning) -> None:
        self._known = {message.id for message in begin.messages}
        self._calls = {
            str(call["id"]): call
            for message in begin.messages
            if begin.is_resumed and isinstance(message, AIMessage)
            for call in message.tool_calls
        }
        """Those made before the question; their results were not there yet."""
        self._open: dict[str, str] = {}
        """The names of the tools at work, by the ids of the calls."""
        self._held: BaseMessage | None = None
        """The last message, which a later node may correct, unless a tool acts on it."""
        self._nameless: list[dict[str, object]] = []
        """Those that came without an id; the graph's state gives them one."""

    def steps(self, message: BaseMessage) -> Iterator[Step]:
        """What a message adds, if it is new or corrects the last one."""
        is_correction = self._held is not None and None is not self._held.id == message.id
        if not is_correction:
            if not self._is_new(message):
                return
            yield from self.let_go()
        self._held = message
        if isinstance(message, ToolMessage):
            yield from self._result(message)
        elif isinstance(message, AIMessage) and message.tool_calls:
            yield from self.let_go()
            for call in message.tool_calls:
                self._open[str(call["id"])] = call["name"]
                yield Progress("tool", call["name"], "started")

    def before(self, steps: Iterator[Text | Progress]) -> Iterator[Step]:
        """What a model streams, behind the message before it."""
        for step in steps:
            if isinstance(step, Text):
                yield from self.let_go()
            yield step

    def let_go(self) -> Iterator[Step]:
        """The message that was held back: nothing corrects it any more."""
        held, self._held = self._held, None
        if held is not None:
            yield Finished(to_plain(held))

    def results_for_open_calls(self) -> Iterator[Step]:
        """A result for each call whose tool asks the user first."""
        for call_id in self._open:
            yield Finished({"role": "tool", "content": ASKED_FIRST, "tool_call_id": call_id})

    def _result(self, message: ToolMessage) -> Iterator[Step]:
        self._held = None
        result = to_plain(message)
        call = self._calls.get(message.tool_call_id)
        name = self._open.pop(message.tool_call_id, call["name"] if call else message.name)
        yield Progress("tool", name or "", "failed" if message.status == "error" else "ended")
        if call is not None:
            # The call stands in the turn that asked, with a result that says so. It is said once
            # more, in a name of its own: providers refuse two calls of one name.
            result["tool_call_id"] = f"call_{uuid.uuid4().hex[:24]}"
            again = {**call, "id": result["tool_call_id"]}
            yield Finished({"role": "assistant", "content": "", "tool_calls": [again]})
        yield Finished(result)

    def _is_new(self, message: BaseMessage) -> bool:
        if message.id in self._known:
            return False
        plain = to_plain(message)
        if plain.pop("id", None) is None:
            self._nameless.append(plain)
            return True
        self._known.add(message.id)
        if plain not in self._nameless:
            return True
        self._nameless.remove(plain)
        return False


def _asking(thread: str, interrupts: Mapping[str, object]) -> dict[str, object]:
    """The last message of a turn that asks, its first question as text for every client."""
    questions = tuple((name, _bounded(codec.cleaned(v))) for name, v in interrupts.items())
    asks = Asks(thread=thread, questions=questions)
    return {"role": "assistant", "content": _question(questions[0][1]), "asks": asks.plain()}


def _bounded(value: object) -> object:
    written = codec.dump_json(value)
    return value if len(written) <= MAX_ASKED_CHARS else written[:MAX_ASKED_CHARS]


def _question(value: object) -> str:
    """The words of a question; never empty, or the message would say nothing."""
    if isinstance(value, dict):
        texts = [text for key in QUESTION_KEYS if isinstance(text := value.get(key), str)]
        value = next(filter(str.strip, texts), value)
    text = value if isinstance(value, str) else codec.dump_json(value) if value else ""
    return text if text.strip() else GO_ON
