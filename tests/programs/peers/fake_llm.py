"""The contract's model as one of LangChain's chat models."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder

from chatmemory.testing.langchain import given
from chatmemory.testing.stores import Model

PROMPT = ChatPromptTemplate([MessagesPlaceholder("history"), ("human", "{input}")])
"""A chain's prompt, which passes all messages on unchanged."""


class FakeChatModel(BaseChatModel):
    """Wraps a model of the contract; counts each message as one token."""

    model: Any

    def __init__(self, model: Model, **more: Any) -> None:
        super().__init__(**{"model": model, **more})

    @property
    def _llm_type(self) -> str:
        return "fake"

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:
        return len(messages)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        reply = AIMessage(self.model(given(messages)))
        return ChatResult(generations=[ChatGeneration(message=reply)])
