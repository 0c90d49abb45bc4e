"""A store of the sessions of OpenAI's agents SDK, with a fake model under its runner."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from agents import Agent, ModelResponse, RunConfig, Runner, Usage
from agents.memory import SessionSettings
from agents.models.interface import Model as AgentModel
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from chatmemory.testing.stores import Address, AsyncStore, Message, Model


class FakeModel(AgentModel):
    def __init__(self, model: Model) -> None:
        self.model = model

    async def get_response(self, *_: Any, **asked: Any) -> ModelResponse:
        given = [text_of(item) for item in asked["input"]]
        text = await asyncio.to_thread(self.model, given)
        part = ResponseOutputText(type="output_text", text=text, annotations=[])
        message = ResponseOutputMessage(
            id="reply", type="message", role="assistant", status="completed", content=[part]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("Runner.run calls get_response only")


def text_of(item: Any) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class Sessions(AsyncStore, ABC):
    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.settings = SessionSettings(limit=limit)

    @abstractmethod
    async def session(self, at: Address) -> Any:
        """Return the session of the SDK at an address."""

    async def aappend(self, at: Address, messages: Sequence[Message]) -> None:
        session = await self.session(at)
        await session.add_items([dict(message) for message in messages])

    async def aread(self, at: Address) -> list[Message]:
        session = await self.session(at)
        items = await session.get_items()
        return [{**item, "content": text_of(item)} for item in items]

    async def aclear(self, at: Address) -> None:
        session = await self.session(at)
        await session.clear_session()

    async def aturn(self, at: Address, text: str, model: Model) -> str:
        done = await Runner.run(
            Agent(name="peer", model=FakeModel(model)),
            text,
            session=await self.session(at),
            run_config=RunConfig(tracing_disabled=True),
        )
        return str(done.final_output)
