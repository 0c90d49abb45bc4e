"""Run the turns of an agent with tools, in processes that are killed: see tests/killed.py.

`python -m tests.langgraph.turn_process EFFECTS`: the arguments of a run are `KEY ID=TEXT …`, which
sends the texts to the session KEY. Replies of the model, and tools, begin and end with a step.
Tools write a line for each call to the file EFFECTS.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import django
from django.test import override_settings
from django.utils.module_loading import import_string

from tests.killed import serve, step

_effects = Path()
_key = ""


def main() -> None:
    global _effects
    _effects = Path(sys.argv[1])
    django.setup()
    _agent()  # imports LangChain
    serve(_run)


def agent(session: object) -> Any:
    return _agent()


def _run(key: str, *messages: str) -> None:
    global _key
    _key = key
    services: Any = import_module("chatmemory.services")
    models: Any = import_module("chatmemory.models")
    runner: Any = import_module("chatmemory.live.runner").runner
    runner.rename()
    options = {"RESPONDER": "tests.langgraph.turn_process.agent", "SENDS_PER_MINUTE": None}
    with override_settings(CHATMEMORY=options):
        session = models.Session.objects.get(key=key)
        for message in messages:
            client_id, text = message.split("=")
            if not session.turns.filter(client_id=client_id).exists():
                by = services.Actor.server("tests")
                services.admit_turn(
                    session_key=key, client_id=client_id, content=text, by=by, scope=services.SERVER
                )
            while runner.run(session.pk):
                pass


def _effect(name: str) -> None:
    step()
    with _effects.open("a") as file:
        file.write(f"{_key} {name}\n")
    step()


def _agent() -> Any:
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool
    from langgraph.types import interrupt

    class Model(BaseChatModel):
        """Asks whether to remove something; says whether tools were called before its reply."""

        @property
        def _llm_type(self) -> str:
            return "killed"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            step()
            reply = AIMessage("Done." if isinstance(messages[-1], ToolMessage) else "Fine.")
            if messages[-1].content == "remove":
                names = enumerate(("weather", "remove"))
                reply.tool_calls = [
                    {"name": name, "args": {}, "id": f"c{number}", "type": "tool_call"}
                    for number, name in names
                ]
                reply.content = ""
            step()
            return ChatResult(generations=[ChatGeneration(message=reply)])

    @tool
    def weather() -> str:
        """The weather."""
        _effect("weather")
        return "Rain."

    @tool
    def remove() -> str:
        """Remove a file, if the user agrees."""
        answer = interrupt("Remove it?")
        _effect("remove")
        return f"The user said {answer}."

    create_agent = import_string("langchain.agents.create_agent")  # mypy crashes on its import
    return create_agent(Model(), tools=[weather, remove])


if __name__ == "__main__":
    import_module("tests.langgraph.turn_process").main()  # not a second copy of this module
