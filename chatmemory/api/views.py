"""A person's own sessions. Another's, and one that there never was, are the same: not found."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import takewhile
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from django.core.handlers.asgi import ASGIRequest
from django.db import transaction
from django.utils.decorators import method_decorator
from django.views.decorators.cache import cache_control
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import PermissionDenied, UnsupportedMediaType
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from chatmemory import codec, services
from chatmemory.api.errors import answer
from chatmemory.api.paging import fitting, page_of
from chatmemory.api.parsers import StrictJSONParser
from chatmemory.api.serializers import (
    MessageQuery,
    Opening,
    Send,
    SessionQuery,
    Shape,
    session_fields,
)
from chatmemory.drain import drain
from chatmemory.errors import BadInput, Forbidden, NotFound, Unauthenticated
from chatmemory.models import Session, StoredMessage, Turn
from chatmemory.runner import runner
from chatmemory.services import Actor, Admitted
from chatmemory.services.pool import release_connections
from chatmemory.waits import waits

FIRST_LOOK_SECONDS = 0.1
LAST_LOOK_SECONDS = 1.0
"""The first and the longest pause before a request rereads a turn that another process runs. A
commit of this process wakes it."""

NO_MESSAGE = "There is no such message."

LONGEST_TURN = 1_000
"""How many rows of a turn an answer holds at most."""


class SessionLogin(SessionAuthentication):
    """Django's login; the token against forged requests in its header."""

    def enforce_csrf(self, request: Request) -> None:
        # Of Django's request: REST framework's would read the body as a form, and leave none.
        try:
            super().enforce_csrf(request._request)  # type: ignore[arg-type]  # noqa: SLF001  # it is what Django checks
        except PermissionDenied as error:
            raise Forbidden(str(error.detail)) from error


class Negotiation(DefaultContentNegotiation):
    """Negotiate by `Accept` alone: a `format` in the query selects nothing."""

    def filter_renderers(self, renderers: Any, format: str) -> Any:  # noqa: A002  # REST framework's name
        return renderers


@method_decorator([transaction.non_atomic_requests, cache_control(no_store=True)], name="dispatch")
class View(APIView):
    """What all views here share, whatever the host's REST_FRAMEWORK says."""

    authentication_classes = (SessionLogin,)
    permission_classes = (IsAuthenticated,)
    throttle_classes = ()
    parser_classes = (StrictJSONParser,)
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = Negotiation
    versioning_class = None
    metadata_class = None
    http_method_names = ("get", "head", "post")

    def get_exception_handler(self) -> Callable[[Exception, Any], Response]:
        return answer

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        # Before the check for CSRF, which would read a form.
        negotiator = self.get_content_negotiator()
        if request.method == "POST" and not negotiator.select_parser(request, self.get_parsers()):
            raise UnsupportedMediaType(request.content_type)
        super().initial(request, *args, **kwargs)
        services.check_reach(self.actor)
        if request.method != "POST":
            services.check_reads(self.actor)

    @property
    def actor(self) -> Actor:
        """Who asks."""
        user = self.request.user
        if not isinstance(user, AbstractBaseUser):
            raise Unauthenticated
        return Actor.user(user)

    def query(self, shape: type[Shape]) -> dict[str, Any]:
        """The query in its shape, without `format`. Raises BadInput."""
        given = self.request.query_params.dict()
        given.pop(api_settings.URL_FORMAT_OVERRIDE, None)
        return shape.read(given)

    def read(self, shape: type[Shape]) -> dict[str, Any]:
        """The body in its shape. Raises BadInput."""
        # Not `request.data`, which takes a body without a length for an empty one.
        parser = StrictJSONParser()
        return shape.read(parser.parse(self.request, None, self.request.parser_context))


class SessionList(View):
    """Own sessions, the last active first."""

    def get(self, request: Request) -> Response:
        query = self.query(SessionQuery)
        page = page_of(services.sessions_of(self.actor), **query)
        return Response({"sessions": session_fields(page.sessions), "next": page.next})

    def post(self, request: Request) -> Response:
        """Open a session: 201 if there was none under its key."""
        opening = self.read(Opening)
        key = codec.check_key(opening.pop("key", str(uuid.uuid4())))
        is_new = not services.sessions_of(self.actor).filter(key=key).exists()
        if is_new and not codec.is_new_key(key):
            # Other keys are the host's: no client may take one before the host opens it.
            raise BadInput("The key of a new session must be a version-4 UUID.", field="key")
        session = services.open_session(session_key=key, by=self.actor, **opening)
        return Response(_fields(session), 201 if is_new else 200)


class SessionDetail(View):
    """One session, without its messages."""

    def get(self, request: Request, key: str) -> Response:
        session = services.get_session(session_key=codec.key_of_address(key), by=self.actor)
        return Response(_fields(session))


class MessageList(View):
    """A session's messages, in order of seq."""

    def get(self, request: Request, key: str) -> Response:
        query = self.query(MessageQuery)
        page = services.read_page(session_key=codec.key_of_address(key), by=self.actor, **query)
        rows = fitting(page.rows) if "after" in query else fitting(page.rows[::-1])[::-1]
        return Response(
            {
                "epoch": page.head.epoch,
                "first_seq": page.head.first_seq,
                "last_seq": page.head.last_seq,
                "superseded": services.read_superseded(head=page.head),
                "messages": [row.public() for row in rows],
            }
        )

    def post(self, request: Request, key: str) -> Response:
        """Send a message: 202 when it is stored, 201 with the reply if that was waited for.

        The same client_id again sends nothing: 200, and the turn as it is now.
        """
        services.check_rate(self.actor)
        send = self.read(Send)
        wait = send.pop("wait")
        with waits.slot(services.scope_for(self.actor, None)) if wait else nullcontext():
            return self._send(key, send, wait)

    def _send(self, key: str, send: dict[str, Any], wait: float) -> Response:
        if isinstance(self.request._request, ASGIRequest):  # noqa: SLF001  # as above
            runner.enable()  # a server of sockets too; a WSGI server leaves the turn to one
            drain.watch_from_view(signal.SIGTERM)
        admitted = services.admit_turn(session_key=codec.key_of_address(key), by=self.actor, **send)
        turn = _waited_for(admitted, wait) if wait else _turn(admitted)
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
        """The rows of the turn after the user's, or the last of them that fit an answer."""
        if turn.user_seq is None:
            return []
        page = services.read_page(
            session_key=key, by=self.actor, after=turn.user_seq, limit=LONGEST_TURN
        )
        replies = list(takewhile(lambda row: row.turn == turn.user_seq, page.rows))
        return fitting(replies[::-1])[::-1]


class MessageDetail(View):
    """One message, whole."""

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
    """The versions of a user's message, the oldest first."""

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
    """Tickets for clients without cookies, who may sign in as the host's REST_FRAMEWORK allows."""

    def get_authenticators(self) -> list[BaseAuthentication]:
        # Only if the host chose them: by default REST framework takes passwords.
        is_chosen = "DEFAULT_AUTHENTICATION_CLASSES" in api_settings.user_settings
        others: Any = api_settings.DEFAULT_AUTHENTICATION_CLASSES if is_chosen else ()
        return [SessionLogin(), *(authenticator() for authenticator in others)]

    def post(self, request: Request) -> Response:
        """A ticket, and the subprotocols with which a websocket is opened by it."""
        self.read(Shape)
        ticket = services.issue_ticket(by=self.actor, **self._login())
        protocols = ["chatmemory.v1", f"ticket.{ticket}"]
        fields = {"ticket": ticket, "expires_in": services.TICKET_SECONDS, "protocols": protocols}
        return Response(fields, 201)

    def _login(self) -> dict[str, str | None]:
        """Return what the ticket's socket ends with: the Django session, or the credential."""
        if isinstance(self.request.successful_authenticator, SessionLogin):
            session = getattr(self.request, "session", None)
            return {"key": None if session is None else session.session_key}
        auth = self.request.auth
        return {"credential": None if auth is None else str(auth)}


def _fields(session: Session) -> dict[str, object]:
    for fields in session_fields([session]):
        return fields
    raise NotFound


def _advance(session_pk: int) -> bool:
    """End a dead process's run, and begin the turn that waits first; False if none was begun."""
    turns = Turn.objects.filter(session=session_pk)
    if turns.overdue().exists():
        services.end_overdue(session_pk)
    return turns.claimable().exists() and runner.begin(session_pk) is not None


def _turn(admitted: Admitted) -> Turn:
    return Turn.objects.get(session=admitted.session_pk, client_id=admitted.turn)


def _waited_for(admitted: Admitted, seconds: float) -> Turn:
    """The turn when it has ended, or after so long; no database connection is held meanwhile."""
    deadline = time.monotonic() + seconds
    pause = FIRST_LOOK_SECONDS
    with waits.news_of(admitted.session_pk) as news:
        while True:
            news.clear()
            turn = _turn(admitted)
            left = deadline - time.monotonic()
            if turn.ended_at or left < 0:
                return turn
            if _advance(admitted.session_pk):
                continue
            release_connections()
            is_news = news.wait(min(pause, left))
            pause = FIRST_LOOK_SECONDS if is_news else min(2 * pause, LAST_LOOK_SECONDS)
