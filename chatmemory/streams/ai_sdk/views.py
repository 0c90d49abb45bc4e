"""The addresses of the AI SDK's `useChat`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import codec
from chatmemory.api.base import View
from chatmemory.api.requests import LIMIT, SEQ
from chatmemory.api.turns import Stop
from chatmemory.errors import BadInput, NotFound
from chatmemory.live.texts import SessionRef
from chatmemory.protocol import MAX_FETCH
from chatmemory.protocol.shapes import Shape
from chatmemory.streams.ai_sdk.history import messages_of
from chatmemory.streams.ai_sdk.sse import UIMessageStream
from chatmemory.streams.base import StreamView
from chatmemory.streams.bodies import json_body, last_message, number_field, text_field
from chatmemory.streams.reads import find_turn_to_resume, read_turns
from chatmemory.streams.sending import Send, admit, check_content, key_of_url, turn_reply_id

TRIGGERS = ("submit-message", "regenerate-message")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """A page of messages."""

    limit: Annotated[int, LIMIT] = MAX_FETCH
    """maximum number of rows, by default 100; a turn is never cut"""
    before: Annotated[int | None, SEQ] = None
    """only messages with a lower seq"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeQuery:
    """What the page has."""

    seen: str | None = None
    """the id of the reply that the page shows whole"""


HISTORY_QUERY = Shape(HistoryQuery)
RESUME_QUERY = Shape(ResumeQuery)


def parse_send(body: Mapping[str, Any]) -> Send:
    """Return the message of a request of `DefaultChatTransport`. Raises BadInput."""
    chat = text_field(body, "id", is_required=True)
    trigger = body.get("trigger", TRIGGERS[0])
    if trigger not in TRIGGERS:
        raise BadInput(f"trigger must be {' or '.join(TRIGGERS)}.", field="trigger")
    message = last_message(body)
    edited = text_field(body, "messageId")
    return Send(
        chat=chat or "",
        message_id=text_field(message, "id", is_required=True) or "",
        content=check_content(message.get("parts")),
        # An edit names the user's message; the name of a new message is that of no stored one.
        is_version=trigger == TRIGGERS[1] or edited is not None,
        request_id=text_field(body, "requestId"),
        expect_seq=number_field(body, "expectSeq"),
    )


class Chat(StreamView):
    """Sends a message, and streams its reply."""

    def post(self, request: Request) -> HttpResponseBase:
        self.begin()
        admitted = admit(parse_send(json_body(request)), self.actor)
        ref = SessionRef(admitted.session_pk, admitted.epoch)
        return self.turn_stream(ref, admitted.turn, UIMessageStream(admitted.turn))


class ChatStream(StreamView):
    """Streams the reply that a page has lost."""

    def get(self, request: Request, chat: str) -> HttpResponseBase:
        """Stream the running, the next or the last turn from its beginning; 204 without one.

        Also without a session, or if it is another person's.
        """
        self.begin()
        query = self.query(RESUME_QUERY)
        try:
            key = key_of_url(chat, self.actor)
            shown = find_turn_to_resume(session_key=key, by=self.actor)
        except NotFound:  # pages resume a new chat too, and would show the error
            shown = None
        if shown is None or (shown.has_ended and query.seen == turn_reply_id(shown.turn)):
            return Response(status=204)
        return self.turn_stream(shown.ref, shown.turn, UIMessageStream(shown.turn))


class ChatStop(Stop):
    """Stops a turn of the chat."""

    schema = None  # type: ignore[assignment]  # as of the streams

    def post(self, request: Request, chat: str) -> Response:
        """Stop the named turn, or the running one; without one both fields are null."""
        return super().post(request, key_of_url(chat, self.actor))


class ChatMessages(View):
    """The history of a session."""

    schema = None  # type: ignore[assignment]  # as of the streams

    def get(self, request: Request, chat: str) -> Response:
        """Return the newest messages, or those below `before`; the oldest first."""
        query = self.query(HISTORY_QUERY)
        key = codec.key_of_address(key_of_url(chat, self.actor))
        history = read_turns(session_key=key, by=self.actor, before=query.before, limit=query.limit)
        return Response(messages_of(history))
