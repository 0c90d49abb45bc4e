"""The views of messages: read them, and send one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import takewhile
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import codec, services
from chatmemory.access import actors, rates
from chatmemory.api.base import WRITES, View
from chatmemory.api.conditional import read_session
from chatmemory.api.requests import (
    MESSAGE_FORM,
    MESSAGE_QUERY,
    SEND_MESSAGE,
    MessageQuery,
    SendMessage,
)
from chatmemory.api.waiting import turn_of, wait_for_turn
from chatmemory.errors import NotFound
from chatmemory.live.drain import drain
from chatmemory.live.runner import runner
from chatmemory.live.waits import waits
from chatmemory.models import Head, Page, StoredMessage, Turn
from chatmemory.rendering.rows import RowRenderer
from chatmemory.services.audit.readings import record_view
from chatmemory.services.catch_up import exceeds_page, newest_that_fit, oldest_that_fit, read_missed
from chatmemory.services.sessions import read_superseded
from chatmemory.services.turns.versions import list_versions

NO_MESSAGE = "Message not found."

MAX_TURN_ROWS = 1_000
"""A response contains at most this many rows of a turn."""


class MessageList(View):
    """A session's messages, in order of seq."""

    check_write = staticmethod(rates.check_rate)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.visitor is not None and request.method in WRITES:
            rates.check_network(self.actor, self.visitor.network)

    def get(self, request: Request, key: str) -> Response:
        query = self.query(MESSAGE_QUERY)
        address = codec.key_of_address(key)
        is_page = query.after is not None or query.before is not None
        read = partial(self._read_page if is_page else self._missed, address, query)
        return read_session(request, key=address, by=self.actor, query=query, read=read)

    def _read_page(self, key: str, query: MessageQuery) -> tuple[Head, dict[str, object]]:
        page = services.read_page(
            session_key=key,
            by=self.actor,
            after=query.after,
            before=query.before,
            limit=query.limit,
        )
        if self.actor.real is not None:
            record_view(page, self.actor.real)
        fit = newest_that_fit if query.after is None else oldest_that_fit
        return page.head, _page_fields(page.head, fit(page.rows), html=query.html)

    def _missed(self, key: str, query: MessageQuery) -> tuple[Head, dict[str, object]]:
        missed = read_missed(session_key=key, by=self.actor, cursor=query.cursor, limit=query.limit)
        head = missed.head
        if self.actor.real is not None:
            record_view(Page(head=head, rows=missed.rows), self.actor.real)
        return head, {
            **_page_fields(head, missed.rows, html=query.html),
            "cursor": missed.cursor,
            "reset": missed.reset,
            "more": not missed.is_complete,
            "session": {**head.public(), "waiting": head.waiting},
        }

    def post(self, request: Request, key: str) -> Response:
        """Send a message: 202 if it is stored, 201 if its turn has also ended.

        A repeated client_id sends nothing: 200, with the turn's current state.
        """
        body = self.body(SEND_MESSAGE)
        with waits.slot(actors.scope_for(self.actor, None)) if body.wait else nullcontext():
            return self._send_message(key, body)

    def _send_message(self, key: str, body: SendMessage) -> Response:
        if isinstance(self.request._request, ASGIRequest):  # noqa: SLF001  # Django's own request
            runner.enable()  # a WSGI process leaves the turn to another process
            drain.watch_from_view(signal.SIGTERM)
        admitted = services.admit_turn(
            session_key=codec.key_of_address(key),
            by=self.actor,
            client_id=body.client_id,
            content=body.content,
            epoch=body.epoch,
            if_busy=body.if_busy,
            replaces=body.replaces,
            expect_seq=body.expect_seq,
        )
        turn = wait_for_turn(admitted, body.wait) if body.wait else turn_of(admitted)
        return Response(
            {
                "turn": turn.client_id,
                "status": turn.status,
                "seq": turn.user_seq,
                "error": turn.error,
                "duplicate": admitted.is_duplicate,
                "messages": self._reply_rows(key, turn, html=body.html),
            },
            200 if admitted.is_duplicate else 201 if turn.ended_at else 202,
        )

    def _reply_rows(self, key: str, turn: Turn, *, html: bool) -> list[dict[str, object]]:
        """Return the turn's rows after the user's message; the newest that fit a response."""
        if turn.user_seq is None:
            return []
        page = services.read_page(
            session_key=key, by=self.actor, after=turn.user_seq, limit=MAX_TURN_ROWS
        )
        replies = list(takewhile(lambda row: row.turn == turn.user_seq, page.rows))
        return _message_list(page.head, newest_that_fit(replies), html=html)


def _page_fields(head: Head, rows: Sequence[StoredMessage], *, html: bool) -> dict[str, object]:
    return {
        "epoch": head.epoch,
        "first_seq": head.first_seq,
        "last_seq": head.last_seq,
        "superseded": read_superseded(head=head),
        "messages": _message_list(head, rows, html=html),
    }


def _message_list(
    head: Head, rows: Sequence[StoredMessage], *, html: bool
) -> list[dict[str, object]]:
    """Return the fields of messages; one that alone exceeds a response has no blocks."""
    found = _public(head, rows, html=html)
    for row, fields in zip(rows, found, strict=True):
        if fields["content"] is not None and exceeds_page(row):
            fields |= {"content": None, "cut": True}
    return found


def _public(
    head: Head,
    rows: Sequence[StoredMessage],
    *,
    html: bool,
    max_chars: int = codec.MAX_STEP_CHARS,
) -> list[dict[str, object]]:
    """Return the fields of messages that their reader sees, on request with their HTML."""
    found = [row.public(max_chars=max_chars) for row in rows]
    if not html:
        return found
    renderer = RowRenderer(head)
    return [
        {**fields, "html": renderer.html_of(row)} for row, fields in zip(rows, found, strict=True)
    ]


class MessageDetail(View):
    """One message, never truncated."""

    def get(self, request: Request, key: str, seq: int) -> Response:
        if seq > codec.MAX_SAFE_INTEGER:
            raise NotFound(NO_MESSAGE)
        query = self.query(MESSAGE_FORM)
        page = services.read_page(
            session_key=codec.key_of_address(key), by=self.actor, after=seq - 1, limit=1
        )
        found = [row for row in page.rows if row.seq == seq]
        if not found:
            raise NotFound(NO_MESSAGE)
        if self.actor.real is not None:
            record_view(page, self.actor.real)
        [fields] = _public(page.head, found, html=query.html, max_chars=sys.maxsize)
        return Response(fields)


class VersionList(View):
    """The versions of a user message, the oldest first."""

    def get(self, request: Request, key: str, seq: int) -> Response:
        if seq > codec.MAX_SAFE_INTEGER:
            raise NotFound(NO_MESSAGE)
        versions = list_versions(session_key=codec.key_of_address(key), by=self.actor, seq=seq)
        return Response(
            {
                "versions": [
                    {
                        "turn": version.turn,
                        "seq": version.seq,
                        "to_seq": version.to_seq,
                        "current": version.is_current,
                    }
                    for version in versions
                ]
            }
        )
