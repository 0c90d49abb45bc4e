"""The views of the API. Sessions of other users are not found, like unknown ones."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import takewhile
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings

from chatmemory import codec, services
from chatmemory.access import actors, rates, tickets
from chatmemory.api.base import SessionLogin, View
from chatmemory.api.paging import newest_that_fit, oldest_that_fit, session_page
from chatmemory.api.requests import (
    ISSUE_TICKET,
    MESSAGE_QUERY,
    OPEN_SESSION,
    RENAME_SESSION,
    SEND_MESSAGE,
    SESSION_QUERY,
    SendMessage,
)
from chatmemory.api.waiting import turn_of, wait_for_turn
from chatmemory.errors import BadInput, NotFound
from chatmemory.live.drain import drain
from chatmemory.live.runner import runner
from chatmemory.live.waits import waits
from chatmemory.models import Session, StoredMessage, Turn

NO_MESSAGE = "Message not found."

MAX_TURN_ROWS = 1_000
"""A response contains at most this many rows of a turn."""


class SessionList(View):
    """The user's sessions, the last active first."""

    def get(self, request: Request) -> Response:
        query = self.query(SESSION_QUERY)
        page = session_page(
            services.sessions_of(self.actor), limit=query.limit, cursor=query.cursor
        )
        return Response({"sessions": _list_fields(page.sessions), "next": page.next})

    def post(self, request: Request) -> Response:
        """Open a session: 201 if it is new, else 200."""
        body = self.body(OPEN_SESSION)
        is_new = not services.sessions_of(self.actor).filter(key=body.key).exists()
        if is_new and not codec.is_new_key(body.key):
            # All other keys belong to the host: a client must not use one before the host does.
            raise BadInput("The key of a new session must be a version-4 UUID.", field="key")
        session = services.open_session(session_key=body.key, by=self.actor, title=body.title)
        return Response(_session_fields(session), 201 if is_new else 200)


class SessionDetail(View):
    """One session, without its messages."""

    def get(self, request: Request, key: str) -> Response:
        session = services.get_session(session_key=codec.key_of_address(key), by=self.actor)
        return Response(_session_fields(session))

    def patch(self, request: Request, key: str) -> Response:
        body = self.body(RENAME_SESSION)
        session = services.rename_session(
            session_key=codec.key_of_address(key), by=self.actor, title=body.title
        )
        return Response(_session_fields(session))


class MessageList(View):
    """A session's messages, in order of seq."""

    def get(self, request: Request, key: str) -> Response:
        query = self.query(MESSAGE_QUERY)
        page = services.read_page(
            session_key=codec.key_of_address(key),
            by=self.actor,
            after=query.after,
            before=query.before,
            limit=query.limit,
        )
        fit = newest_that_fit if query.after is None else oldest_that_fit
        return Response(
            {
                "epoch": page.head.epoch,
                "first_seq": page.head.first_seq,
                "last_seq": page.head.last_seq,
                "superseded": services.read_superseded(head=page.head),
                "messages": [row.public() for row in fit(page.rows)],
            }
        )

    def post(self, request: Request, key: str) -> Response:
        """Send a message: 202 if it is stored, 201 if its turn has also ended.

        A repeated client_id sends nothing: 200, with the turn's current state.
        """
        rates.check_rate(self.actor)
        body = self.body(SEND_MESSAGE)
        with waits.slot(actors.scope_for(self.actor, None)) if body.wait else nullcontext():
            return self._send(key, body)

    def _send(self, key: str, body: SendMessage) -> Response:
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
                "messages": [row.public() for row in self._replies(key, turn)],
            },
            200 if admitted.is_duplicate else 201 if turn.ended_at else 202,
        )

    def _replies(self, key: str, turn: Turn) -> Sequence[StoredMessage]:
        """Return the turn's rows after the user's message; the newest that fit a response."""
        if turn.user_seq is None:
            return []
        page = services.read_page(
            session_key=key, by=self.actor, after=turn.user_seq, limit=MAX_TURN_ROWS
        )
        replies = list(takewhile(lambda row: row.turn == turn.user_seq, page.rows))
        return newest_that_fit(replies)


class MessageDetail(View):
    """One message, never truncated."""

    def get(self, request: Request, key: str, seq: int) -> Response:
        if seq > codec.MAX_SAFE_INTEGER:
            raise NotFound(NO_MESSAGE)
        page = services.read_page(
            session_key=codec.key_of_address(key), by=self.actor, after=seq - 1, limit=1
        )
        found = [row.public() for row in page.rows if row.seq == seq]
        if not found:
            raise NotFound(NO_MESSAGE)
        return Response(found[0])


class VersionList(View):
    """The versions of a user message, the oldest first."""

    def get(self, request: Request, key: str, seq: int) -> Response:
        if seq > codec.MAX_SAFE_INTEGER:
            raise NotFound(NO_MESSAGE)
        versions = services.list_versions(
            session_key=codec.key_of_address(key), by=self.actor, seq=seq
        )
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


class TicketList(View):
    """Tickets for clients without cookies.

    They can also authenticate with the host's DEFAULT_AUTHENTICATION_CLASSES.
    """

    def get_authenticators(self) -> list[BaseAuthentication]:
        # Only if the host sets them: REST framework's default includes passwords.
        is_set = "DEFAULT_AUTHENTICATION_CLASSES" in api_settings.user_settings
        others: Any = api_settings.DEFAULT_AUTHENTICATION_CLASSES if is_set else ()
        return [SessionLogin(), *(authenticator() for authenticator in others)]

    def post(self, request: Request) -> Response:
        """Issue a ticket; `protocols` are the subprotocols that open a websocket with it."""
        self.body(ISSUE_TICKET)
        ticket = services.issue_ticket(by=self.actor, **self._login())
        protocols = ["chatmemory.v1", f"ticket.{ticket}"]
        fields = {"ticket": ticket, "expires_in": tickets.TICKET_SECONDS, "protocols": protocols}
        return Response(fields, 201)

    def _login(self) -> dict[str, str | None]:
        """Return the login on which the ticket's socket depends: Django session or credential."""
        if isinstance(self.request.successful_authenticator, SessionLogin):
            session = getattr(self.request, "session", None)
            return {"key": None if session is None else session.session_key}
        auth = self.request.auth
        return {"credential": None if auth is None else str(auth)}


def _list_fields(sessions: Sequence[Session]) -> list[dict[str, object]]:
    """Return the public fields of each session, with its message count and times."""
    heads = Session.objects.heads([session.pk for session in sessions])
    return [
        {
            **head.public(),
            "messages": head.last_seq - head.first_seq + 1,
            "created_at": session.created_at.isoformat(),
            "last_message_at": session.last_message_at and session.last_message_at.isoformat(),
        }
        for session in sessions
        if (head := heads.get(session.pk))  # None if it was purged after the list was read
    ]


def _session_fields(session: Session) -> dict[str, object]:
    for fields in _list_fields([session]):
        return fields
    raise NotFound
