"""Adapts LangGraph's compiled graphs: agents, their tools, and questions to the user.

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
from chatmemory.codec import Question, text_of
from chatmemory.errors import NoCheckpointer
from chatmemory.langchain import to_langchain, to_plain
from chatmemory.responders import values
from chatmemory.responders.runnables import ReasoningFilter, closing, config_of
from chatmemory.responders.values import Finished, Progress, Request, Responder, Step, Text

logger = logging.getLogger(__name__)

ASKED_FIRST = "The user is asked first. The result of this call follows the answer."
"""The stored result of a tool call that waits for the user's answer."""
DEFAULT_QUESTION = "I need your answer to continue."
"""The question if the interrupt's value contains none."""
MAX_ASKED_CHARS = 16_000
"""Maximum length of an interrupt's value as JSON; a longer one is truncated and kept as text."""
QUESTION_KEYS = ("question", "message", "text", "prompt", "description")
"""Keys of an interrupt's value that can contain the question; the first match wins."""


def from_graph(graph: Any) -> Responder:
    """Adapt a compiled graph. Its input has the key `messages`, and its thread is the turn."""
    return partial(_graph_answers, graph)


async def _graph_answers(graph: Any, request: Request) -> AsyncGenerator[Step, None]:
    """Run the graph on the thread of this turn, or of the turn whose question it answers."""
    for prepare in values.before_graph:
        graph, request = await prepare(graph, request)
    start = await _prepare_start(graph, request)
    reported, streams = _MessageReporter(start), _TextStreams()
    interrupts: dict[str, object] = {}
    config, modes = config_of(request, start.thread), ["messages", "updates", "custom"]
    async with closing(graph.astream(start.given, config, stream_mode=modes)) as outputs:
        async for mode, data in outputs:
            steps: Iterable[Step] = ()
            match mode, data:
                case "messages", (AIMessageChunk() as chunk, _):
                    steps = reported.before(streams.steps(chunk))
                case "updates", {"__interrupt__": found}:
                    interrupts |= {one.id: one.value for one in found}
                case "updates", _:
                    steps = chain.from_iterable(map(reported.steps, start.updated(data)))
                case "custom", Progress():
                    steps = [data]
            for step in steps:
                yield step
    for step in reported.release():
        yield step
    if interrupts:
        if not getattr(graph, "checkpointer", True):
            raise NoCheckpointer
        for step in reported.results_for_open_calls():
            yield step
        yield Finished(_question_message(start.thread, interrupts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The start of a graph's run: a new thread, or one that is resumed."""

    thread: str
    given: object
    messages: Sequence[BaseMessage]
    """The messages that are already stored."""
    is_resumed: bool = False

    def updated(self, update: Mapping[str, Any]) -> Iterator[BaseMessage]:
        """Yield the model's and the tools' messages in an update of nodes and tasks."""
        # A resumed graph first repeats the update from before the question. Its messages without an
        # id could not be recognized as repetitions.
        is_repeated = self.is_resumed and "__metadata__" in update
        for made in update.values():
            for change in made if isinstance(made, list) else [made]:
                for message in _changed_messages(change):
                    if isinstance(message, AIMessage | ToolMessage) and (
                        message.id or not is_repeated
                    ):
                        yield message


def _changed_messages(change: object) -> list[BaseMessage]:
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
            # The graph stores the id in its state, so a repetition can be recognized.
            message.id = message.id or str(uuid.uuid4())
    return convert_to_messages(found)


async def _prepare_start(graph: Any, request: Request) -> _Start:
    messages = list(map(to_langchain, request.messages))
    for message in messages:
        message.id = message.id or str(uuid.uuid4())
    if (answers := request.answers) is not None:
        state = await graph.aget_state(config_of(request, answers.thread))
        waiting = {interrupt.id for interrupt in state.interrupts}
        if asked := [name for name, _ in answers.questions if name in waiting]:
            # Only the first question: a "yes" to it does not answer the next one.
            answer: object = Command(resume={asked[0]: text_of(request.messages[-1]["content"])})
            before = _changed_messages(state.values)
            return _Start(thread=answers.thread, given=answer, messages=before, is_resumed=True)
        logger.warning("turn %s: its graph no longer waits for an answer", request.turn)
    return _Start(thread=request.thread, given={"messages": messages}, messages=messages)


class _TextStreams:
    """Streams one model at a time. The texts of concurrent models would be mixed."""

    def __init__(self) -> None:
        self._streaming_id: str | None = None
        self._reasoning = ReasoningFilter()
        self._ignored: set[str | None] = set()

    def steps(self, chunk: AIMessageChunk) -> Iterator[Text | Progress]:
        if self._streaming_id not in (None, chunk.id):
            self._ignored.add(chunk.id)
        if chunk.id in self._ignored:
            return
        if self._streaming_id is None:
            self._reasoning = ReasoningFilter()
        self._streaming_id = None if chunk.chunk_position == "last" else chunk.id
        yield from self._reasoning.steps(chunk)


class _MessageReporter:
    """Yields each message of a run once, with the progress of its tools."""

    def __init__(self, start: _Start) -> None:
        self._known = {message.id for message in start.messages}
        self._calls = {
            str(call["id"]): call
            for message in start.messages
            if start.is_resumed and isinstance(message, AIMessage)
            for call in message.tool_calls
        }
        """By id, the tool calls from before the question, which have no results."""
        self._running_tools: dict[str, str] = {}
        """Names of the running tools, by call id."""
        self._pending: BaseMessage | None = None
        """The last message; a later node can correct it until a tool uses it."""
        self._without_id: list[dict[str, object]] = []
        """Messages without an id; the graph's state repeats them with one."""

    def steps(self, message: BaseMessage) -> Iterator[Step]:
        """Yield the steps of a message that is new or corrects the pending one."""
        pending_id = self._pending.id if self._pending is not None else None
        if pending_id is None or pending_id != message.id:
            if not self._is_new(message):
                return
            yield from self.release()
        self._pending = message
        if isinstance(message, ToolMessage):
            yield from self._result(message)
        elif isinstance(message, AIMessage) and message.tool_calls:
            yield from self.release()
            for call in message.tool_calls:
                self._running_tools[str(call["id"])] = call["name"]
                yield Progress("tool", call["name"], "started")

    def before(self, steps: Iterator[Text | Progress]) -> Iterator[Step]:
        """Yield a model's streamed steps, and the pending message before its text."""
        for step in steps:
            if isinstance(step, Text):
                yield from self.release()
            yield step

    def release(self) -> Iterator[Step]:
        """Yield the pending message; it can no longer be corrected."""
        pending, self._pending = self._pending, None
        if pending is not None:
            yield Finished(to_plain(pending))

    def results_for_open_calls(self) -> Iterator[Step]:
        """Yield a placeholder result for each call whose tool asked the user."""
        for call_id in self._running_tools:
            yield Finished({"role": "tool", "content": ASKED_FIRST, "tool_call_id": call_id})

    def _result(self, message: ToolMessage) -> Iterator[Step]:
        self._pending = None
        result = to_plain(message)
        call = self._calls.get(message.tool_call_id)
        name = self._running_tools.pop(message.tool_call_id, call["name"] if call else message.name)
        yield Progress("tool", name or "", "failed" if message.status == "error" else "ended")
        if call is not None:
            # The turn that asked contains this call with a placeholder result. It is repeated here
            # with a new id, because providers reject two calls with the same id.
            result["tool_call_id"] = f"call_{uuid.uuid4().hex[:24]}"
            again = {**call, "id": result["tool_call_id"]}
            yield Finished({"role": "assistant", "content": "", "tool_calls": [again]})
        yield Finished(result)

    def _is_new(self, message: BaseMessage) -> bool:
        if message.id in self._known:
            return False
        plain = to_plain(message)
        if plain.pop("id", None) is None:
            self._without_id.append(plain)
            return True
        self._known.add(message.id)
        if plain not in self._without_id:
            return True
        self._without_id.remove(plain)
        return False


def _question_message(thread: str, interrupts: Mapping[str, object]) -> dict[str, object]:
    """Build the turn's last message, whose text is the first question."""
    questions = tuple((name, _bounded_value(codec.cleaned(v))) for name, v in interrupts.items())
    asks = Question(thread=thread, questions=questions).plain()
    return {"role": "assistant", "content": _question(questions[0][1]), "asks": asks}


def _bounded_value(value: object) -> object:
    written = codec.dump_json(value)
    return value if len(written) <= MAX_ASKED_CHARS else written[:MAX_ASKED_CHARS]


def _question(value: object) -> str:
    """Return the question as text, never empty."""
    if isinstance(value, dict):
        texts = [text for key in QUESTION_KEYS if isinstance(text := value.get(key), str)]
        value = next(filter(str.strip, texts), value)
    text = value if isinstance(value, str) else codec.dump_json(value) if value else ""
    return text if text.strip() else DEFAULT_QUESTION
