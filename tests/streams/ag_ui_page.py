"""A page of AG-UI: it has the rules of `@ag-ui/client` 1.0.0, and builds the messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.streams.front import Front, Stream

Event = dict[str, Any]

ENDS = ("RUN_FINISHED", "RUN_ERROR")


class Agent(Front):
    """A page of a client of AG-UI."""

    def run(self, text: object, message_id: str = "c1", run: str = "run-1", **more: object) -> Any:
        """POST a message as `HttpAgent` does."""
        messages = [{"id": message_id, "role": "user", "content": text}]
        body = {"threadId": self.chat, "runId": run, "messages": messages, "tools": [], **more}
        return self.post("ag", {"state": {}, "context": [], "forwardedProps": {}, **body})

    @asynccontextmanager
    async def join(self, **query: str) -> AsyncIterator[Stream]:
        async with self.http.stream("GET", "ag", params=query) as response:
            yield Stream(response)

    async def thread(self, **query: Any) -> Any:
        """Return the history, as `useChat` of TanStack AI reads it."""
        response = await self.http.get("ag", params={"threadId": self.chat, **query})
        assert response.status_code == 200, response.text
        return response.json()


class Page:
    """The messages after some events. An event that the client refuses is an AssertionError."""

    def __init__(self, *messages: Event) -> None:
        self.messages = [*messages]
        self._open: set[tuple[str, str]] = set()
        self.end: Event | None = None
        self.custom: list[tuple[str, Any]] = []
        self.snapshots = 0

    def read(self, events: list[Event]) -> Page:
        for event in events:
            self._apply(event)
        return self

    @property
    def text(self) -> str:
        """The text of the replies."""
        return "".join(each.get("content", "") for each in self.messages if _is_reply(each))

    def of(self, name: str) -> list[Any]:
        """Return the values of the events of one's own with this name."""
        return [value for each, value in self.custom if each == name]

    def _apply(self, event: Event) -> None:
        assert self.end is None, "no event follows the last one"
        kind = event["type"]
        entity, _, phase = kind.rpartition("_")
        name = event.get("messageId") or event.get("toolCallId") or event.get("stepName") or ""
        match phase:
            case "START" | "STARTED" if kind != "RUN_STARTED":
                assert (entity, name) not in self._open
                self._open.add((entity, name))
            case "CONTENT" | "ARGS":
                assert (entity, name) in self._open
                assert event["delta"]
            case "END" | "FINISHED" if kind != "RUN_FINISHED":
                self._open.remove((entity, name))
        getattr(self, f"_{kind.lower()}", lambda _: None)(event)
        if kind in ENDS:
            assert kind == "RUN_ERROR" or not self._open
            self.end = event

    def _find(self, name: str, role: str) -> Event:
        for message in self.messages:
            if message["id"] == name:
                return message
        self.messages.append({"id": name, "role": role, "content": ""})
        return self.messages[-1]

    def _text_message_start(self, event: Event) -> None:
        self._find(event["messageId"], event["role"])

    def _text_message_content(self, event: Event) -> None:
        self._find(event["messageId"], "assistant")["content"] += event["delta"]

    def _reasoning_message_start(self, event: Event) -> None:
        self._find(event["messageId"], event["role"])

    def _reasoning_message_content(self, event: Event) -> None:
        self._find(event["messageId"], "reasoning")["content"] += event["delta"]

    def _tool_call_start(self, event: Event) -> None:
        assert not self._call(event["toolCallId"]), "each call of a chat has another id"
        function = {"name": event["toolCallName"], "arguments": ""}
        call = {"id": event["toolCallId"], "type": "function", "function": function}
        message = self._find(event["parentMessageId"], "assistant")
        message.setdefault("toolCalls", []).append(call)

    def _call(self, name: str) -> Event | None:
        calls = (call for message in self.messages for call in message.get("toolCalls", ()))
        return next((call for call in calls if call["id"] == name), None)

    def _tool_call_args(self, event: Event) -> None:
        call = self._call(event["toolCallId"])
        assert call is not None
        call["function"]["arguments"] += event["delta"]

    def _tool_call_result(self, event: Event) -> None:
        assert self._call(event["toolCallId"])
        result = {key: event[key] for key in ("toolCallId", "content")}
        self.messages.append({"id": event["messageId"], "role": "tool", **result})

    def _custom(self, event: Event) -> None:
        self.custom.append((event["name"], event["value"]))

    def _messages_snapshot(self, event: Event) -> None:
        self.snapshots += 1
        self.messages = event["messages"]


def _is_reply(message: Event) -> bool:
    return bool(message["role"] == "assistant")
