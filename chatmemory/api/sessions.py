"""The views of sessions. Other users' sessions are not found, like unknown ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import codec, services
from chatmemory.api import conditional
from chatmemory.api.base import View
from chatmemory.api.requests import (
    NOTHING,
    OPEN_SESSION,
    REMOVED_QUERY,
    SESSION_QUERY,
    UPDATE_SESSION,
)
from chatmemory.errors import BadInput, NotFound
from chatmemory.models import AuditEntry, Head, Session
from chatmemory.services import Removed
from chatmemory.services.audit.entries import BY_OWNER
from chatmemory.services.removal.restore import undo_until
from chatmemory.services.sessions import get_head


class SessionList(View):
    """The user's sessions, the last active first."""

    def get(self, request: Request) -> Response:
        query = self.query(SESSION_QUERY)
        page = services.list_sessions(
            by=self.actor,
            archived=query.archived,
            pinned=query.pinned,
            running=query.running,
            title=query.title,
            metadata=None if query.metadata is None else dict([query.metadata.split(":", 1)]),
            cursor=query.cursor,
            limit=query.limit,
        )
        fields: dict[str, object] = {"sessions": _list_fields(page.sessions), "next": page.next}
        return conditional.content(request, fields)

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
        address = codec.key_of_address(key)
        read = partial(self._read_session, address)
        return conditional.read_session(
            request, key=address, by=self.actor, query="session", read=read
        )

    def _read_session(self, key: str) -> tuple[Head, dict[str, object]]:
        # The head first: a change in between makes the ETag too old, but never the fields.
        head = get_head(session_key=key, by=self.actor)
        return head, _fields(services.get_session(session_key=key, by=self.actor), head)

    def patch(self, request: Request, key: str) -> Response:
        body = self.body(UPDATE_SESSION)
        session = services.update_session(
            session_key=codec.key_of_address(key),
            by=self.actor,
            title=body.title,
            pinned=body.pinned,
            expect_revision=body.expect_revision,
        )
        return Response(_session_fields(session))

    def delete(self, request: Request, key: str) -> Response:
        """Purge the session; `undo` restores it."""
        entry = services.purge_session(
            session_key=codec.key_of_address(key), by=self.actor, reason=BY_OWNER
        )
        return Response({"undo": entry.pk, "until": undo_until(entry).isoformat()})


class _Change(View):
    """A change of a session that may be repeated."""

    service: Callable[..., AuditEntry | None]

    def post(self, request: Request, key: str) -> Response:
        self.body(NOTHING)
        address = codec.key_of_address(key)
        self.service(session_key=address, by=self.actor, reason=BY_OWNER)
        session = services.get_session(session_key=address, by=self.actor)
        return Response(_session_fields(session))


class Archive(_Change):
    """Closes a session for new messages."""

    service = staticmethod(services.archive_session)


class Unarchive(_Change):
    """Opens an archived session for new messages."""

    service = staticmethod(services.unarchive_session)


class RemovedList(View):
    """The sessions that the user purged and can restore, the last one first."""

    def get(self, request: Request) -> Response:
        query = self.query(REMOVED_QUERY)
        found = services.list_removed(by=self.actor, before=query.cursor, limit=query.limit + 1)
        has_more = len(found) > query.limit
        page = found[: query.limit]
        return Response(
            {
                "removed": [_removed_fields(removed) for removed in page],
                "next": str(page[-1].entry_pk) if has_more else None,
            }
        )


class Restore(View):
    """Restores a purged session."""

    def post(self, request: Request, undo: int) -> Response:
        self.body(NOTHING)
        entry = services.restore_session(entry_pk=undo, by=self.actor, reason=BY_OWNER)
        session = services.sessions_of(self.actor).filter(pk=entry.session_pk or 0).first()
        if session is None:
            raise NotFound  # purged again
        return Response(_session_fields(session))


def _list_fields(sessions: Sequence[Session]) -> list[dict[str, object]]:
    """Return the public fields of each session, with its state, message count and times."""
    heads = Session.objects.heads([session.pk for session in sessions])
    return [
        _fields(session, head)
        for session in sessions
        if (head := heads.get(session.pk))  # None if it was purged after the list was read
    ]


def _session_fields(session: Session) -> dict[str, object]:
    for fields in _list_fields([session]):
        return fields
    raise NotFound


def _fields(session: Session, head: Head) -> dict[str, object]:
    return {
        **head.public(),
        "waiting": head.waiting,
        "pinned": session.pinned_at is not None,
        "held": session.held_at is not None,
        "expires_at": session.ends_at and session.ends_at.isoformat(),
        "messages": head.last_seq - head.first_seq + 1,
        "created_at": session.created_at.isoformat(),
        "last_message_at": session.last_message_at and session.last_message_at.isoformat(),
    }


def _removed_fields(removed: Removed) -> dict[str, object]:
    return {
        "undo": removed.entry_pk,
        "key": removed.key,
        "title": removed.title,
        "messages": removed.messages,
        "removed_at": removed.removed_at.isoformat(),
        "until": removed.until.isoformat(),
    }
