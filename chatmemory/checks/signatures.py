"""Whether an object that RESPONDER names can reply, without calling it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

GENERATOR_HINT = "An async generator function is called as f(messages, session)."
FACTORY_HINT = (
    "A function that does not yield is a factory: it is called as f(session), and returns the "
    "responder. To reply itself, it must be `async def` and yield."
)
KINDS_HINT = (
    "Name an async generator function, a factory, or a Runnable: a chat model, a chain or a "
    "compiled graph."
)
LIBRARY_HINT = "{name} is of {module}: name your own function, or an object that it returned."
SYNC_HINT = "A generator function must be `async def`, so that it blocks no other reply."

_LIBRARIES = (
    "asgiref",
    "channels",
    "django",
    "functools",
    "langchain",
    "langchain_core",
    "langgraph",
)
"""Packages whose functions and classes accept no session, such as LangChain's decorator `tool`."""


def hint_for(found: Any) -> str | None:
    """Return how to correct an object that cannot be a responder; None if it may be one."""
    if inspect.isasyncgenfunction(found) or inspect.isasyncgenfunction(type(found).__call__):
        return None if accepts(found, 2) else GENERATOR_HINT
    if inspect.isgeneratorfunction(found):
        return SYNC_HINT
    if inspect.isroutine(found) or inspect.isclass(found):
        module = getattr(found, "__module__", None) or ""
        if module.partition(".")[0] in _LIBRARIES:
            return LIBRARY_HINT.format(name=found.__qualname__, module=module)
        return None if accepts(found, 1) else FACTORY_HINT
    return None if _is_runnable(found) else KINDS_HINT


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function accepts this number of arguments; true if it is unknown."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some functions of C code have no signature
        return True
    return True


def _is_runnable(found: object) -> bool:
    # Not imported here: if no code has imported LangChain, the object has none of its classes.
    runnables = sys.modules.get("langchain_core.runnables")
    return runnables is not None and isinstance(found, runnables.Runnable)
