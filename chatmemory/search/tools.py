"""Tools for agents of LangChain: search the chats of a person, and read in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel

from chatmemory.access.actors import Actor, scope_for
from chatmemory.access.addresses import check_session_key
from chatmemory.errors import BadInput, ChatMemoryError
from chatmemory.search.arguments import (
    READ_MESSAGES,
    SEARCH_MEMORY,
    ReadMessages,
    SearchMemory,
    problems_of,
)
from chatmemory.search.lookups import REACHES, Lookup, Reach, refusal


def memory_tools(
    *, by: Actor, session_key: str, scope: str | None = None, reach: Reach = "session"
) -> list[BaseTool]:
    """Return the tools `search_memory` and `read_messages` for an agent that answers in a session.

    They reach this session or, with `reach="scope"`, all of the same person; in the scope `server`
    only this session. No argument of the model changes that: another session is "not found". They
    return texts of at most 20 messages and 8,000 characters, also for an error that a model can
    avoid. `by` and `scope` are those of a service. Raises ValueError for an unknown reach,
    BadInput, and TypeError for a scope that the actor cannot have.
    """
    if reach not in REACHES:
        raise ValueError(f"reach must be one of {', '.join(REACHES)}, not {reach!r}")
    scope_for(by, scope)
    check_session_key(session_key)
    lookup = Lookup(by=by, scope=scope, session_key=session_key, reach=reach)
    return [
        _tool("search_memory", SEARCH_MEMORY, SearchMemory, lookup.search, lookup.asearch),
        _tool("read_messages", READ_MESSAGES, ReadMessages, lookup.read, lookup.aread),
    ]


def _tool(
    name: str,
    description: str,
    arguments: type[BaseModel],
    call: Callable[..., tuple[str, Any]],
    acall: Callable[..., Awaitable[tuple[str, Any]]],
) -> BaseTool:
    def run(**given: Any) -> str:
        try:
            return call(**given)[0]
        except ChatMemoryError as error:
            return refusal(error)

    async def arun(**given: Any) -> str:
        try:
            return (await acall(**given))[0]
        except ChatMemoryError as error:
            return refusal(error)

    return StructuredTool(
        name=name,
        description=description,
        args_schema=arguments,
        func=run,
        coroutine=arun,
        handle_validation_error=_invalid,
    )


def _invalid(error: Any) -> str:
    return refusal(BadInput(problems_of(error)))
