"""A client of the REST API, whose methods have the names of its operations.

    async with RestClient("https://shop.example/chat/api/", cookies=cookies) as rest:
        session = await rest.open_session(title="My order")
        sent = await rest.send_message(session["key"], "Where is my order?", wait=60)
        print(sent["messages"][-1]["text"])

It uses the package `httpx` (the extra `client`) and needs no Django.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Self

from chatmemory.client.events import Frame
from chatmemory.client.http import TIMEOUT_SECONDS, ApiError, Call, Http, path_of
from chatmemory.client.sse import events_of

PAGE_SIZE = 100
"""The most entries that the server returns in a page."""
SILENCE_SECONDS = 45.0
"""Time without a byte after which a stream counts as lost; the server sends one each 10 s."""


class RestClient:
    """Calls the REST API as one user; `async with` closes its connections.

    `url` is the address under which the host includes `chatmemory.api.urls`. Log in with the
    `cookies` of a session or with `headers`, such as `Authorization`; `options` are passed to
    `httpx.AsyncClient`. Each method returns the JSON of the answer, as in docs/reference/api.md, or
    raises ApiError. After a lost connection, calls that can be repeated are repeated a few times.
    """

    def __init__(
        self,
        url: str,
        *,
        cookies: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        **options: Any,
    ) -> None:
        self._http = Http(
            url,
            cookies=cookies or {},
            headers=headers or {},
            timeout_seconds=timeout_seconds,
            options=options,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    # Sessions

    async def list_sessions(
        self,
        *,
        archived: bool | None = None,
        pinned: bool | None = None,
        running: bool | None = None,
        title: str | None = None,
        metadata: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Frame:
        """Return a page of the sessions, the last active first; `next` is the next cursor."""
        filters = {"archived": archived, "pinned": pinned, "running": running, "title": title}
        return await self._get(
            "sessions/", **filters, metadata=metadata, limit=limit, cursor=cursor
        )

    async def sessions(self, **filters: Any) -> AsyncIterator[Frame]:
        """Yield the sessions, the last active first, with the filters of `list_sessions`.

        A session that becomes active meanwhile moves to the front and may be missing.
        """
        cursor = None
        while True:
            page = await self.list_sessions(limit=PAGE_SIZE, cursor=cursor, **filters)
            for session in page["sessions"]:
                yield session
            if (cursor := page["next"]) is None:
                return

    async def open_session(self, key: str | None = None, *, title: str = "") -> Frame:
        """Return the session with this key, by default a new one."""
        # The key is chosen here, so that a repeat opens no second session.
        body = {"key": key or str(uuid.uuid4()), "title": title}
        return await self._modify("POST", "sessions/", body)

    async def get_session(self, key: str) -> Frame:
        return await self._get(path_of("sessions", key))

    async def update_session(
        self,
        key: str,
        *,
        title: str | None = None,
        pinned: bool | None = None,
        expect_revision: int | None = None,
    ) -> Frame:
        """Rename a session, pin or unpin it; return it."""
        body = _given(title=title, pinned=pinned, expect_revision=expect_revision)
        return await self._modify("PATCH", path_of("sessions", key), body)

    async def archive_session(self, key: str) -> Frame:
        """Close a session for new messages; return it."""
        return await self._modify("POST", path_of("sessions", key, "archive"), {})

    async def unarchive_session(self, key: str) -> Frame:
        """Open an archived session; return it."""
        return await self._modify("POST", path_of("sessions", key, "unarchive"), {})

    async def purge_session(self, key: str) -> Frame:
        """Purge a session; `undo` restores it until `until`."""
        try:
            return await self._modify("DELETE", path_of("sessions", key))
        except ApiError as error:
            if error.code != "not_found" or error.attempts == 1:
                raise
            # An earlier attempt purged it, and its answer was lost.
            async for removed in self.removed():
                if removed["key"] == key:
                    return {name: removed[name] for name in ("undo", "until")}
            raise

    async def list_removed(self, *, limit: int | None = None, cursor: str | None = None) -> Frame:
        """Return a page of the purged sessions that can be restored, the last one first."""
        return await self._get("removed/", limit=limit, cursor=cursor)

    async def removed(self) -> AsyncIterator[Frame]:
        """Yield the purged sessions that can be restored, the last one first."""
        cursor = None
        while True:
            page = await self.list_removed(limit=PAGE_SIZE, cursor=cursor)
            for removed in page["removed"]:
                yield removed
            if (cursor := page["next"]) is None:
                return

    async def restore_session(self, undo: int) -> Frame:
        """Restore a purged session; return it. After `disconnected`, see `list_removed`."""
        # Not repeated: the second answer would be `conflict`.
        return await self._modify("POST", path_of("removed", undo, "restore"), {}, can_repeat=False)

    # Messages

    async def list_messages(
        self,
        key: str,
        *,
        after: int | None = None,
        before: int | None = None,
        cursor: str | None = None,
        limit: int | None = None,
        html: bool = False,
    ) -> Frame:
        """Return messages in order of seq: the oldest after a seq, the newest before one, those
        missed since a cursor, or the newest.

        `html` adds each text as HTML.
        """
        page = {"after": after, "before": before, "cursor": cursor, "limit": limit}
        page["html"] = html or None
        return await self._get(path_of("sessions", key, "messages"), **page)

    async def messages(self, key: str, *, after: int = 0) -> AsyncIterator[Frame]:
        """Yield the messages after a seq, the oldest first."""
        while True:
            page = await self.list_messages(key, after=after, limit=PAGE_SIZE)
            for message in page["messages"]:
                yield message
                after = message["seq"]
            if not page["messages"] or after >= page["last_seq"]:
                return

    async def older_messages(self, key: str, *, before: int | None = None) -> AsyncIterator[Frame]:
        """Yield the messages before a seq, by default all, the newest first."""
        while True:
            page = await self.list_messages(key, before=before, limit=PAGE_SIZE)
            for message in reversed(page["messages"]):
                yield message
                before = message["seq"]
            if not page["messages"] or before == page["first_seq"]:
                return

    async def send_message(
        self,
        key: str,
        text: str | None = None,
        *,
        content: list[Frame] | None = None,
        client_id: str | None = None,
        epoch: int | None = None,
        if_busy: str | None = None,
        replaces: int | None = None,
        expect_seq: int | None = None,
        wait: float | bool = 0,
        html: bool = False,
    ) -> Frame:
        """Send a message; return the state of its turn after the commit, or after its reply.

        `wait` is the number of seconds to wait for the reply; True waits for the turn's end.
        """
        client_id = client_id or secrets.token_urlsafe(16)
        replaced = {"replaces": replaces, "expect_seq": expect_seq}
        options = {"epoch": epoch, "if_busy": if_busy, "wait": wait or None}
        options["html"] = html or None
        body = _given(client_id=client_id, text=text, content=content, **replaced, **options)
        more = None if wait is True else wait
        path = path_of("sessions", key, "messages")
        try:
            return await self._modify("POST", path, body, timeout_seconds=more)
        except ApiError as error:
            error.client_id = client_id
            raise

    async def get_message(self, key: str, seq: int, *, html: bool = False) -> Frame:
        """Return a message without truncation."""
        return await self._get(path_of("sessions", key, "messages", seq), html=html or None)

    async def list_versions(self, key: str, seq: int) -> Frame:
        """Return the versions of a user's message, the oldest first."""
        return await self._get(path_of("sessions", key, "messages", seq, "versions"))

    async def search_messages(
        self,
        query: str,
        *,
        session: str | None = None,
        role: str | None = None,
        before: str | None = None,
        after: str | None = None,
        order: str | None = None,
        mode: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Frame:
        """Find messages by their words; `cursor` of the page is that of the next request.

        Needs `chatmemory.search.urls` under the same address. Times are in ISO 8601 with an offset.
        """
        filters = _given(session=session, role=role, before=before, after=after)
        ways = _given(order=order, mode=mode, limit=limit, cursor=cursor)
        return await self._modify("POST", "search/", {"query": query, **filters, **ways})

    # Turns

    async def list_turns(self, key: str) -> Frame:
        """Return the running turn, then the waiting ones in the order in which they start."""
        return await self._get(path_of("sessions", key, "turns"))

    async def get_turn(self, key: str, turn: str) -> Frame:
        """Return a turn, also one that has ended."""
        return await self._get(path_of("sessions", key, "turns", turn))

    async def stop_turn(self, key: str, turn: str | None = None) -> Frame:
        """Stop a running turn, or cancel a waiting one; by default the running turn."""
        # A repeat without a name would stop the next turn.
        return await self._modify(
            "POST",
            path_of("sessions", key, "stop"),
            _given(turn=turn),
            can_repeat=turn is not None,
        )

    async def set_feedback(self, key: str, turn: str, value: int | None, reason: str = "") -> Frame:
        """Rate the reply of an ended turn with 1 (good) or -1 (bad); None withdraws it."""
        path = path_of("sessions", key, "turns", turn, "feedback")
        return await self._modify("PUT", path, {"value": value, "reason": reason})

    async def withdraw_feedback(self, key: str, turn: str) -> Frame:
        return await self._modify("DELETE", path_of("sessions", key, "turns", turn, "feedback"))

    async def events(self, key: str, *, cursor: str | None = None) -> AsyncGenerator[Frame, None]:
        """Yield the frames of a session, up to `bye`, also those missed since a cursor.

        Needs `chatmemory.streams.urls` under the same address. Not repeated: continue with the
        cursor of the last `synced` frame. Raises ApiError, ValueError if an event is no JSON.
        """
        call = Call(
            method="GET",
            path=f"ui/{path_of('events', key)}",
            headers={} if cursor is None else {"Last-Event-ID": cursor},
            silence_seconds=SILENCE_SECONDS,
        )
        async with aclosing(self._http.stream(call)) as pieces:
            async for event in events_of(pieces):
                yield json.loads(event)

    # The user's data, tickets, health

    async def export_own_data(self, format: str = "json") -> AsyncIterator[bytes]:
        """Yield a file with all sessions of the user, as `json` or `markdown`.

        The file is complete if the iterator ends without ApiError.
        """
        call = Call(method="GET", path="own-data/export/", query={"format": format})
        async for piece in self._http.stream(call):
            yield piece

    async def erase_own_data(self, confirm: str) -> Frame:
        """Delete all sessions permanently; `confirm` is the username. Return the receipt."""
        # Not repeated: the second receipt would not contain what the first call deleted.
        return await self._modify("POST", "own-data/erase/", {"confirm": confirm}, can_repeat=False)

    async def create_visitor(self, embed: str = "") -> Frame:
        """Return the visitor of this client's cookie, by default a new one.

        Later calls are for the visitor, and the socket of `connect(url, ticket=rest.ticket)`.
        With an `embed`, return a new visitor with a `token`; `headers` of this client need the
        `Origin` of the embed, those of another client also `Authorization: Visitor <token>`.
        """
        if not embed:
            self._http.add_cookies({})
        return await self._modify("POST", "visitors/", {"embed": embed})

    async def list_adoptable(self) -> Frame:
        """Return the sessions of this client's visitor, before the user takes them over."""
        return await self._get("visitors/adoption/")

    async def adopt_visitor(self, visitor: str) -> Frame:
        """Move the sessions of this client's visitor to the user; return their `keys`."""
        return await self._modify("POST", "visitors/adoption/", {"visitor": visitor})

    async def erase_visitor(self) -> Frame:
        """Delete all data of the visitor permanently, and end the visitor. Return the receipt."""
        return await self._modify("DELETE", "visitors/me/", can_repeat=False)

    async def issue_ticket(self) -> Frame:
        """Return a ticket, with which a client without cookies opens one websocket."""
        return await self._modify("POST", "tickets/", {})

    async def ticket(self) -> str:
        """Return a ticket, for `connect(url, ticket=rest.ticket)`.

        Raises OSError if a later call may succeed; the chat then connects again.
        """
        try:
            return str((await self.issue_ticket())["ticket"])
        except ApiError as error:
            if error.retry:
                raise OSError(str(error)) from error
            raise

    async def get_health(self, token: str | None = None) -> Frame:
        """Return whether the app works; with the secret `HEALTH_TOKEN` also the details."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await self._http.probe("health/", headers)

    async def _get(self, path: str, **query: Any) -> Frame:
        return await self._http.request(Call(method="GET", path=path, query=query))

    async def _modify(
        self, method: str, path: str, body: Frame | None = None, **options: Any
    ) -> Frame:
        return await self._http.request(Call(method=method, path=path, body=body, **options))


def _given(**fields: Any) -> Frame:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
