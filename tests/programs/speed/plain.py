"""The consumers that ours is compared with: a plain one, and one without a database."""

from __future__ import annotations

import json
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import transaction

from chatmemory.models import Message, Session
from tests.programs.speed.responder import pieces_for

PLAIN_SCOPE = "plain"


class StockConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels is untyped
    """Streams the reply; stores nothing."""

    async def connect(self) -> None:
        await self.accept()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        frame: dict[str, Any] = json.loads(text_data or "{}")
        if frame["type"] == "hello":
            await self.send(json.dumps({"type": "synced"}))
            return
        text = frame["text"]
        await self.store("user", text)
        pieces: list[str] = []
        async for piece in pieces_for(text):
            pieces.append(piece)
            await self.send(json.dumps({"type": "delta", "text": piece}))
        await self.store("assistant", "".join(pieces))
        await self.send(json.dumps({"type": "done", "text": "".join(pieces)}))

    async def store(self, role: str, text: str) -> None:
        """Store a message."""


class PlainConsumer(StockConsumer):
    """Stores each message in a transaction of the ORM, two for a turn.

    Without admission, lease, cursor, replay or a check of the login.
    """

    async def store(self, role: str, text: str) -> None:
        await database_sync_to_async(self._store)(role, text)

    def _store(self, role: str, text: str) -> None:
        key = self.scope["url_route"]["kwargs"]["key"]
        with transaction.atomic():
            session = Session.objects.select_for_update().get(scope=PLAIN_SCOPE, key=key)
            session.last_seq += 1
            session.tokens += len(text) // 4
            session.save(update_fields=["last_seq", "tokens"])
            Message.stored.create(
                session=session,
                seq=session.last_seq,
                role=role,
                text=text,
                status=Message.Status.COMPLETE,
                error="",
                model="",
                tokens=len(text) // 4,
            )
