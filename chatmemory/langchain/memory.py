"""A wrapper that passes the history to a chain and stores each turn."""

# ruff: noqa: A002  # `input` is LangChain's name

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config

from chatmemory import codec
from chatmemory.errors import BadInput
from chatmemory.langchain.history import DjangoChatMessageHistory
from chatmemory.langchain.messages import to_plain

Input = Any
Output = Any


def with_memory(
    runnable: Runnable[Input, Output],
    get_history: Callable[[], DjangoChatMessageHistory] | None = None,
    *,
    input_messages_key: str | None = None,
    history_messages_key: str | None = None,
    output_messages_key: str | None = None,
) -> Runnable[Input, Output]:
    """Return a Runnable that adds the history to its input and stores the turn at the end.

    The history is `get_history()`, else the history of `session_id` and `owner` in
    `config["configurable"]`.

    Input and output are a text, a message or a list of messages, or a dict that contains one of
    these under the given key. The history is added before the input's messages, or under
    `history_messages_key`. If an output contains the input, as the state of a graph does, only what
    follows is stored.

    Input and output are stored in one batch at the end; errors are raised. A run that fails, or a
    stream that is not read to its end, stores nothing. Input that cannot be stored is refused
    before the run.
    """
    return _WithMemory(
        runnable, get_history, input_messages_key, history_messages_key, output_messages_key
    )


class _WithMemory(Runnable[Input, Output]):
    def __init__(
        self,
        runnable: Runnable[Input, Output],
        get_history: Callable[[], DjangoChatMessageHistory] | None,
        input_key: str | None,
        history_key: str | None,
        output_key: str | None,
    ) -> None:
        self.runnable = runnable
        self.get_history = get_history
        self.input_key = input_key
        self.history_key = history_key
        self.output_key = output_key

    def invoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:
        config, history, new = self._begin_call(input, config)
        given = [*history.messages, *new]
        output = self.runnable.invoke(self._input(input, given, new), config, **kwargs)
        history.add_messages([*new, *self._output_messages(output, given)], lenient=True)
        return output

    async def ainvoke(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Output:
        config, history, new = self._begin_call(input, config)
        given = [*await history.aget_messages(), *new]
        output = await self.runnable.ainvoke(self._input(input, given, new), config, **kwargs)
        await history.aadd_messages([*new, *self._output_messages(output, given)], lenient=True)
        return output

    def stream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any | None
    ) -> Iterator[Output]:
        config, history, new = self._begin_call(input, config)
        given = [*history.messages, *new]
        output: Output = None
        for chunk in self.runnable.stream(self._input(input, given, new), config, **kwargs):
            output = _joined_output(output, chunk)
            yield chunk
        history.add_messages([*new, *self._output_messages(output, given)], lenient=True)

    async def astream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any | None
    ) -> AsyncIterator[Output]:
        config, history, new = self._begin_call(input, config)
        given = [*await history.aget_messages(), *new]
        output: Output = None
        async for chunk in self.runnable.astream(self._input(input, given, new), config, **kwargs):
            output = _joined_output(output, chunk)
            yield chunk
        await history.aadd_messages([*new, *self._output_messages(output, given)], lenient=True)

    def _begin_call(
        self, value: Input, config: RunnableConfig | None
    ) -> tuple[RunnableConfig, DjangoChatMessageHistory, list[BaseMessage]]:
        """Return the config, the history and the input's messages. Raises BadInput."""
        config = ensure_config(config)
        new = _messages_of(_value(value, self.input_key, "input"), HumanMessage, "input")
        # Before the run: a reply to input that cannot be stored would be lost.
        for index, message in enumerate(new):
            field = f"input[{index}]"
            codec.encode(to_plain(message, field=field), field=field)
        if self.get_history is not None:
            return config, self.get_history(), new
        try:
            session_id, owner = (config["configurable"][key] for key in ("session_id", "owner"))
        except KeyError as error:
            raise TypeError('config["configurable"] must have a session_id and an owner') from error
        return config, DjangoChatMessageHistory(session_id, owner=owner), new

    def _input(self, value: Input, given: list[BaseMessage], new: list[BaseMessage]) -> Input:
        """Add the history to the input."""
        if self.history_key is not None:
            return {**value, self.history_key: given[: len(given) - len(new)]}
        return given if self.input_key is None else {**value, self.input_key: given}

    def _output_messages(self, output: Output, given: list[BaseMessage]) -> list[BaseMessage]:
        """Return the messages of the output that are not in the input."""
        if output is None:
            return []
        messages = _messages_of(_value(output, self.output_key, "output"), AIMessage, "output")
        if messages[: len(given)] == given:
            return messages[len(given) :]
        # In the state of a graph, a summary may have replaced older messages.
        ends = [n for n, one in enumerate(messages, 1) if one.id and one.id == given[-1].id]
        return messages[max(ends, default=0) :]


def _joined_output(output: Output, chunk: Output) -> Output:
    """Add a chunk; one that cannot be added replaces the output, as in LangChain."""
    if output is None:
        return chunk
    try:
        return output + chunk
    except TypeError:
        return chunk


def _value(value: object, key: str | None, field: str) -> object:
    if key is None:
        return value
    if not isinstance(value, dict) or key not in value:
        raise BadInput(f"{field} must be a dict with the key {key!a}.", field=field)
    return value[key]


def _messages_of(value: object, from_text: type[BaseMessage], field: str) -> list[BaseMessage]:
    match value:
        case str():
            return [from_text(content=value)]
        case BaseMessage():
            return [value]
        case list() | tuple():
            return list(value)
        case _:
            raise BadInput(
                f"{field} must be text or messages, not {type(value).__name__}.", field=field
            )
