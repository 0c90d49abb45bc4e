"""The views of sessions. Those of other users are not found, like unknown ones."""

from __future__ import annotations

from collections.abc import Sequence

from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import codec, services
from chatmemory.api.base import View
from chatmemory.api.paging import session_page
from chatmemory.api.requests import OPEN_SESSION, RENAME_SESSION, SESSION_QUERY
from chatmemory.errors import BadInput, NotFound
from chatmemory.models import Session


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
