"""Agents with a model that answers from a list, and sessions of them."""

# ruff: noqa: A002  # `input` is the SDK's name

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from chatmemory.agents import DjangoSession
from chatmemory.services import SERVER
from tests.factories import BY

CALL: dict[str, Any] = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city":"Oslo"}',
}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "Rain in Oslo."}


def session_of(key: str = "talk", **options: Any) -> DjangoSession:
    return DjangoSession(key, **{"by": BY, "scope": SERVER, **options})


def user_items(*texts: str) -> list[Any]:
    """Return items of the user."""
    return [{"role": "user", "content": text} for text in texts]


def texts_of(items: Sequence[Any]) -> list[str]:
    """Return the texts of items: of messages, calls and results."""
    return [_text_of(item) for item in items]


def _text_of(item: Any) -> str:
    content = item.get("content", item.get("output", item.get("name")))
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def reply(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(
        id="m1", type="message", role="assistant", status="completed", content=[part]
    )


def call() -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(**CALL)


class ListedModel(Model):
    """Returns these outputs one after the other, and keeps the inputs that it was given."""

    def __init__(self, *outputs: Any) -> None:
        self.outputs = [*outputs]
        self.inputs: list[list[Any]] = []

    async def get_response(
        self, system_instructions: Any, input: Any, *_: Any, **__: Any
    ) -> ModelResponse:
        self.inputs.append(input)
        return ModelResponse(output=[self.outputs.pop(0)], usage=Usage(), response_id=None)

    async def stream_response(
        self, system_instructions: Any, input: Any, *_: Any, **__: Any
    ) -> AsyncIterator[Any]:
        self.inputs.append(input)
        response = Response(
            id="r1",
            created_at=0,
            model="listed",
            object="response",
            output=[self.outputs.pop(0)],
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(
            type="response.completed", response=response, sequence_number=0
        )


@function_tool
def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Rain in {city}."


async def run(model: Model, text: str, session: DjangoSession, *, streams: bool = False) -> str:
    """Run an agent with a tool; return its reply."""
    agent = Agent(name="guide", model=model, tools=[weather])
    options: Any = {"session": session, "run_config": RunConfig(tracing_disabled=True)}
    if not streams:
        return str((await Runner.run(agent, text, **options)).final_output)
    result = Runner.run_streamed(agent, text, **options)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)
