"""Loads the responder that the setting RESPONDER names."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from chatmemory.conf import settings
from chatmemory.errors import Blocked, ModelError
from chatmemory.models import Session
from chatmemory.responders import demo
from chatmemory.responders.failures import is_blocked, kind_of
from chatmemory.responders.generators import from_generator
from chatmemory.responders.values import Finished, Request, Responder, Step


def find() -> Responder:
    """Return the responder of the current setting RESPONDER.

    The first call may import LangChain and the provider's package, which takes seconds.
    Raises ImproperlyConfigured.
    """
    return _find_responder(settings.RESPONDER)


@cache
def _find_responder(setting: str) -> Responder:
    if setting == "demo":
        responder = from_generator(demo.answer)
    elif ":" in setting:
        responder = _from_model(setting)
    else:
        responder = _from_path(setting)
    return _complete(responder)


def _from_model(name: str) -> Responder:
    """Load a chat model by its name, `provider:model`."""
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        advice = 'pip install "django-chatmemory[models]"'
        message = f"RESPONDER is {name!r}; model names need LangChain: {advice}"
        raise ImproperlyConfigured(message) from error
    try:
        model = init_chat_model(name)
    except Exception as error:  # each provider has its own error classes
        raise ImproperlyConfigured(f"RESPONDER {name!r} cannot be used: {error}") from error
    return _from_object(model)


def _from_path(path: str) -> Responder:
    """Import a responder, or a factory that is called at each turn."""
    try:
        found = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(f"RESPONDER {path!r} cannot be imported: {error}") from error
    is_factory = inspect.isroutine(found) or inspect.isclass(found)
    if is_factory and not inspect.isasyncgenfunction(found):
        return _from_factory(found)
    try:
        return _from_object(found)
    except TypeError as error:
        raise ImproperlyConfigured(f"RESPONDER {path!r} cannot be used: {error}") from error


def _from_factory(factory: Callable[[Session], Any]) -> Responder:
    async def respond(request: Request) -> AsyncGenerator[Step, None]:
        if inspect.iscoroutinefunction(factory):
            made = factory(request.session)
        else:
            made = await asyncio.to_thread(factory, request.session)  # Note [Host code in loops]
        if inspect.isawaitable(made):
            made = await made
        async with aclosing(_from_object(made)(request)) as items:
            async for item in items:
                yield item

    return respond


def _from_object(found: Any) -> Responder:
    """Adapt an async generator function or a Runnable. Raises TypeError for other types."""
    if inspect.isasyncgenfunction(found) or inspect.isasyncgenfunction(type(found).__call__):
        return from_generator(found)
    from langchain_core.runnables import Runnable

    # Not imported here: if no code has imported LangGraph, `found` is not a graph.
    pregel = sys.modules.get("langgraph.pregel.protocol")
    if pregel is not None and isinstance(found, pregel.PregelProtocol):
        from chatmemory.responders.graphs import from_graph

        return from_graph(found)
    if isinstance(found, Runnable):
        from chatmemory.responders.runnables import from_runnable

        return from_runnable(found)
    name = type(found).__name__
    raise TypeError(f"a responder must be a Runnable or an async generator function, not {name}")


def _complete(responder: Responder) -> Responder:
    """Add a last message if it is missing, and convert the provider's errors to ours."""

    async def respond(request: Request) -> AsyncGenerator[Step, None]:
        last: dict[str, object] = {}
        try:
            async with aclosing(responder(request)) as items:
                async for item in items:
                    yield item
                    if isinstance(item, Finished):
                        last = item.message
        except ModelError:
            raise
        except Exception as error:
            kind = kind_of(error)
            if kind is None:
                raise
            raise kind from error
        if is_blocked(last):
            raise Blocked
        if last.get("role") != "assistant" or last.get("tool_calls"):
            yield Finished({"role": "assistant", "content": ""})

    return respond
