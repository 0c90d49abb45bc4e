"""The address of AG-UI's clients: it runs turns, streams them again, and has the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import codec
from chatmemory.api.requests import LIMIT, SEQ
from chatmemory.database.pool import in_pool
from chatmemory.errors import BadInput, NotFound
from chatmemory.live.texts import SessionRef
from chatmemory.protocol import MAX_FETCH
from chatmemory.protocol.shapes import Shape
from chatmemory.services import Actor
from chatmemory.streams.ag_ui.events import TurnEvents
from chatmemory.streams.ag_ui.messages import messages_of, parts_of
from chatmemory.streams.ag_ui.runs import active_turn, find_run, run_of
from chatmemory.streams.ag_ui.sse import RunStream
from chatmemory.streams.base import StreamView
from chatmemory.streams.bodies import json_body, last_message, text_field
from chatmemory.streams.reads import History, find_turn_to_resume, read_turns
from chatmemory.streams.replies import Data
from chatmemory.streams.sending import (
    MAX_RUN_MESSAGE_CHARS,
    Send,
    admit,
    check_content,
    key_of_url,
    session_key_of,
)

MAX_SNAPSHOT_ROWS = 1000
"""The rows of a snapshot of the messages; a page forgets older ones until it is loaded again."""
MAX_RUN_CHARS = 300
"""The longest id of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """What a client asks for: the stream of a run, or the history of a session."""

    runId: str | None = None  # noqa: N815  # as the clients name it
    """the run that is streamed again"""
    offset: str | None = None
    """where the stream begins: it is always streamed from its beginning"""
    threadId: str | None = None  # noqa: N815
    """the session"""
    limit: Annotated[int, LIMIT] = MAX_FETCH
    """maximum number of rows, by default 100; a turn is never cut"""
    before: Annotated[int | None, SEQ] = None
    """only messages with a lower seq"""


RUN_QUERY = Shape(RunQuery)


def parse_run(body: Mapping[str, Any]) -> Send:
    """Return the message of a `RunAgentInput`. Raises BadInput."""
    thread = codec.check_key(body.get("threadId"), field="threadId")
    run = text_field(body, "runId", is_required=True) or ""
    if not 1 <= len(run) <= MAX_RUN_CHARS or not run.isprintable():
        raise BadInput(f"runId must be 1 to {MAX_RUN_CHARS} printable characters.", field="runId")
    if body.get("tools"):
        raise BadInput("The tools of this chat run on the server. Send no tools.", field="tools")
    message = last_message(body)
    name = text_field(message, "id", is_required=True) or ""
    if len(name) > MAX_RUN_MESSAGE_CHARS:
        raise BadInput(
            f"The id of a message must have at most {MAX_RUN_MESSAGE_CHARS} characters.",
            field="messages",
            limit=MAX_RUN_MESSAGE_CHARS,
        )
    content = message.get("content")
    return Send(
        chat=thread,
        message_id=name,
        content=content if isinstance(content, str) else check_content(content),
        is_version=True,  # if the message is stored
        request_id=run,
        is_run=True,
    )


class Runs(StreamView):
    """Runs turns, streams them again, and returns the history."""

    def post(self, request: Request) -> HttpResponseBase:
        """Send the last message, and stream its reply."""
        self.begin()
        body = json_body(request)
        send = parse_run(body)
        admitted = admit(send, self.actor)
        ref = SessionRef(admitted.session_pk, admitted.epoch)
        is_versioned = body.get("protocolVersion") is not None
        events = TurnEvents(
            admitted.turn, send.chat, send.request_id or "", is_versioned=is_versioned
        )
        return self._stream(ref, admitted.turn, send.chat, events)

    def get(self, request: Request) -> HttpResponseBase:
        query = self.query(RUN_QUERY)
        if query.runId is not None:
            return self._replay(query.runId, query.threadId)
        if query.threadId is None:
            raise BadInput("Name a run by runId, or a session by threadId.", field="threadId")
        return Response(self._history(query.threadId, query))

    def _replay(self, run: str, thread: str | None) -> HttpResponseBase:
        """Stream a run from its beginning. Raises NotFound, also some time after its end."""
        self.begin()
        key = None if thread is None else key_of_url(thread, self.actor)
        found = find_run(run, self.actor, key)
        if found is None:
            raise NotFound("No turn of this run waits, runs, or has just ended.")
        thread = thread or found.thread
        return self._stream(found.ref, found.turn, thread, TurnEvents(found.turn, thread, run))

    def _stream(
        self, ref: SessionRef, turn: str, thread: str, events: TurnEvents
    ) -> HttpResponseBase:
        read = partial(_aread_newest, self.actor, thread)
        return self.turn_stream(ref, turn, RunStream(events, ref, read))

    def _history(self, thread: str, query: RunQuery) -> Data:
        """Return the messages, and the run whose reply is not among them; both of TanStack AI.

        A session that does not exist is empty: clients ask before they send the first message.
        """
        nothing: Data = {"messages": [], "activeRun": None, "page": {"truncated": False}}
        try:
            key = key_of_url(thread, self.actor)
            shown = find_turn_to_resume(session_key=key, by=self.actor)
            history = read_turns(
                session_key=key, by=self.actor, before=query.before, limit=query.limit
            )
        except NotFound:
            return nothing
        active = active_turn(shown, history)
        page: Data = {"truncated": history.has_older}
        if history.has_older:
            page["cursor"] = str(history.rows[0].seq)
        return {
            "messages": parts_of(messages_of(history, without=(active,) if active else ())),
            "activeRun": None if active is None else {"runId": run_of(active, key)},
            "page": page,
        }


def _read_newest(by: Actor, thread: str) -> History:
    key = session_key_of(thread, by)
    return read_turns(session_key=key, by=by, before=None, limit=MAX_SNAPSHOT_ROWS)


_aread_newest = in_pool(_read_newest)
