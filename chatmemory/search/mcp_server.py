"""The answers of the MCP server, by the SDK of the protocol; only the view imports this."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import mcp_types
from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpResponse
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, Field, ValidationError

from chatmemory import __version__, codec, services
from chatmemory.access.actors import Actor
from chatmemory.errors import BadInput, ChatMemoryError
from chatmemory.logs import log_error
from chatmemory.models import Session, starts_of
from chatmemory.pages.listing import title_of
from chatmemory.search.api import record_readings
from chatmemory.search.arguments import (
    AROUND,
    READ_MESSAGES,
    SEARCH_MEMORY,
    SearchMemory,
    problems_of,
)
from chatmemory.search.lookups import MAX_ROWS, NOTICE, Lookup, refusal
from chatmemory.services.audit.readings import record_view

logger = logging.getLogger(__name__)

INSTRUCTIONS: Final = f"The chats of the person who is signed in. {NOTICE}"

SESSION: Final = "The session, as in a result of search_memory or list_sessions."

ACTOR: Final = "chatmemory.actor"
"""The key of the actor in the scope of a request."""

NOT_PASSED: Final = frozenset({"authorization", "cookie", "host", "origin"})
"""Headers that the view has checked, and the SDK does not need."""


class SearchChats(SearchMemory):
    """The arguments of `search_memory`."""

    session: str | None = Field(None, description=SESSION + " By default all sessions.")


class ReadChat(BaseModel):
    """The arguments of `read_messages`."""

    session: str = Field(description=SESSION)
    around: int = Field(description=AROUND)


class ListSessions(BaseModel):
    """The arguments of `list_sessions`."""

    title: str = Field("", description="Only sessions with this text in their title.")
    cursor: str | None = Field(None, description="What an earlier result names, for its next page.")


def answer(body: bytes, headers: Mapping[str, str], actor: Actor) -> HttpResponse:
    """Answer one request of an actor: a message of JSON-RPC."""
    return async_to_sync(_answer)(body, headers, actor)


async def _answer(body: bytes, headers: Mapping[str, str], actor: Actor) -> HttpResponse:
    """Let the SDK answer one request."""
    exchange = _Exchange(body)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "root_path": "",
        "query_string": b"",
        "headers": [
            (name.lower().encode("latin1"), text.encode("latin1"))
            for name, text in headers.items()
            if name.lower() not in NOT_PASSED
        ],
        ACTOR: actor,
    }
    # One for each request: it needs a task group, for which the host's server has no lifespan here.
    manager = StreamableHTTPSessionManager(_server, json_response=True, stateless=True)
    async with manager.run():
        await manager.handle_request(scope, exchange.receive, exchange.send)
    return exchange.response()


class _Exchange:
    """The server's side of one request of ASGI."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 500
        self._headers: dict[str, str] = {}
        self._content: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()  # the client stays connected until the answer
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, event: Any) -> None:
        if event["type"] == "http.response.start":
            self._status = event["status"]
            pairs = event.get("headers", ())
            self._headers = {name.decode(): text.decode("latin1") for name, text in pairs}
        else:
            self._content.append(event.get("body", b""))

    def response(self) -> HttpResponse:
        self._headers.pop("content-length", None)
        return HttpResponse(
            b"".join(self._content),
            status=self._status,
            content_type=self._headers.pop("content-type", ""),
            headers=self._headers,
        )


def _search(by: Actor, given: SearchChats) -> str:
    text, page = Lookup(by=by).search(**given.model_dump())
    if by.real is not None:
        record_readings(page.hits, by.real)
    return text


def _read(by: Actor, given: ReadChat) -> str:
    text, page = Lookup(by=by).read(**given.model_dump())
    if by.real is not None:
        record_view(page, by.real)
    return text


def _list(by: Actor, given: ListSessions) -> str:
    page = services.list_sessions(
        by=by, title=given.title, cursor=given.cursor or None, limit=MAX_ROWS
    )
    if not page.sessions:
        return "There is no session."
    starts = starts_of(session.pk for session in page.sessions if not session.title)
    lines = [
        _session_line(session, title_of(session.title, starts.get(session.pk)))
        for session in page.sessions
    ]
    if page.next is not None:
        lines.append(f"There are more: the cursor is {page.next}")
    return "\n".join(lines)


def _session_line(session: Session, title: str) -> str:
    last = session.last_message_at
    return (
        f"Session {codec.dump_json(session.key)}, title {codec.dump_json(title)}, "
        f"messages {session.first_seq} to {session.last_seq}, "
        + (f"last message {last:%Y-%m-%d %H:%M} UTC" if last else "no message")
    )


@dataclass(frozen=True, slots=True)
class _Tool:
    name: str
    description: str
    arguments: type[BaseModel]
    call: Callable[[Actor, Any], str]

    def public(self) -> mcp_types.Tool:
        return mcp_types.Tool(
            name=self.name,
            description=self.description,
            input_schema=self.arguments.model_json_schema(),
            annotations=mcp_types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )

    def result(self, by: Actor, given: Mapping[str, object]) -> mcp_types.CallToolResult:
        try:
            return _result(self.call(by, self.arguments.model_validate(given)))
        except ValidationError as error:
            return _refused(BadInput(problems_of(error)))
        except ChatMemoryError as error:
            return _refused(error)
        except Exception as error:  # a bug, or the host's code, such as that of a limit
            log_error(logger, "a tool of MCP failed", error=error)
            return _refused(ChatMemoryError())


def _result(text: str, *, is_error: bool = False, **fields: object) -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(
        content=[mcp_types.TextContent(text=text)],
        structured_content=fields or None,
        is_error=is_error,
    )


def _refused(error: ChatMemoryError) -> mcp_types.CallToolResult:
    return _result(refusal(error), is_error=True, code=error.code, message=str(error))


LIST_SESSIONS: Final = "List the sessions of the person, the last active first, 20 at a time."

_TOOLS: Final = {
    tool.name: tool
    for tool in (
        _Tool("search_memory", SEARCH_MEMORY, SearchChats, _search),
        _Tool("read_messages", READ_MESSAGES, ReadChat, _read),
        _Tool("list_sessions", LIST_SESSIONS, ListSessions, _list),
    )
}
_LISTED: Final = mcp_types.ListToolsResult(tools=[tool.public() for tool in _TOOLS.values()])
_SCHEMAS: Final = {tool.name: tool.input_schema for tool in _LISTED.tools}


async def _list_tools(_: ServerRequestContext[Any], __: object) -> mcp_types.ListToolsResult:
    return _LISTED


async def _call_tool(
    context: ServerRequestContext[Any], params: mcp_types.CallToolRequestParams
) -> mcp_types.CallToolResult:
    tool = _TOOLS.get(params.name)
    if tool is None:
        raise MCPError(mcp_types.INVALID_PARAMS, "There is no tool of this name.")
    request: Any = context.request  # of Starlette
    actor: Actor = request.scope[ACTOR]
    # On the thread of the view, which waits for it and has the request's connection.
    return await sync_to_async(partial(tool.result, actor, params.arguments or {}))()


_server: Final = Server(
    "chatmemory",
    version=__version__,
    instructions=INSTRUCTIONS,
    get_tool_input_schema=_SCHEMAS.get,
    on_list_tools=_list_tools,
    on_call_tool=_call_tool,
)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    # The SDK logs the start and end of a manager, which are those of each request.
    return record.levelno > logging.INFO


logging.getLogger("mcp.server.streamable_http_manager").addFilter(_is_worth_logging)
