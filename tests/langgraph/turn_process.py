"""Run the turns of an agent with tools in processes that are killed at one of their steps.

`python -m tests.langgraph.turn_process EFFECTS` reads lines `NUMBER KEY ID=TEXT …`, starts a
process that sends the texts to the session KEY, and prints `killed`, or `done` if it has fewer
steps. A step is the beginning or the end of a statement, of a model's reply, or of a tool. Tools
write a line for each call to the file EFFECTS.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import django
from django.db.backends.signals import connection_created
from django.test import override_settings
from django.utils.module_loading import import_string

_numbers = itertools.count(1)
_killed_at = 0
_effects = Path()
_key = ""


def main() -> None:
    global _effects
    _effects = Path(sys.argv[1])
    django.setup()
    _agent()  # imports LangChain
    for line in sys.stdin:
        pid = os.fork()  # which starts faster than Python
        if not pid:
            _run(*line.split())
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        sys.stdout.write("killed\n" if is_killed else "done\n" if not status else f"{status}\n")
        sys.stdout.flush()


def agent(session: object) -> Any:
    return _agent()


def _run(number: str, key: str, *messages: str) -> None:
    global _killed_at, _key
    _killed_at, _key = int(number), key
    services: Any = import_module("chatmemory.services")
    models: Any = import_module("chatmemory.models")
    runner: Any = import_module("chatmemory.live.runner").runner
    runner.rename()
    connection_created.connect(_count_statements)
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


def _count_statements(connection: Any, **_: object) -> None:
    def count(execute: Callable[..., Any], *arguments: Any) -> Any:
        step()
        result = execute(*arguments)
        step()
        return result

    if count.__name__ not in {wrapper.__name__ for wrapper in connection.execute_wrappers}:
        connection.execute_wrappers.append(count)


def step() -> None:
    if next(_numbers) == _killed_at:
        os.kill(os.getpid(), signal.SIGKILL)


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
