"""A session's history as the messages of the AI SDK."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chatmemory.models import StoredMessage
from chatmemory.services import LiveTurn
from chatmemory.streams.ai_sdk.chunks import Chunk, ToolIds, parts_of, row_chunks
from chatmemory.streams.reads import History
from chatmemory.streams.replies import metadata_of
from chatmemory.streams.sending import ROW_PREFIX, turn_reply_id


def messages_of(history: History) -> list[Chunk]:
    """Return the messages, the oldest first; the waiting ones last."""
    messages: list[Chunk] = []
    reply: list[StoredMessage] = []
    for row in history.rows:
        if row.role in ("assistant", "tool"):
            reply.append(row)
            continue
        messages += _reply(reply, history)
        reply = []
        messages.append(_message(row, history))
    messages += _reply(reply, history)
    return [*messages, *map(_waiting, history.waiting)]


def _message(row: StoredMessage, history: History) -> Chunk:
    """Return the message of a user or of the system; versions have the id of the first one."""
    first = history.first_versions.get(row.seq, (row.seq, row.client_id))
    return {
        "id": _row_id(*first),
        "role": row.role,
        "metadata": {"turn": row.turn_client_id, "seq": row.seq, "status": row.status},
        "parts": [{"type": "text", "text": row.text, "state": "done"}],
    }


def _row_id(seq: int, client_id: str | None) -> str:
    return client_id or f"{ROW_PREFIX}{seq}"


def _reply(rows: Sequence[StoredMessage], history: History) -> Iterator[Chunk]:
    """Yield the message of the rows that answer one user's message."""
    if not rows:
        return
    ids = ToolIds()
    chunks: list[Chunk] = []
    for row in rows:
        if row.role == "assistant":
            chunks.append({"type": "start-step"})
        chunks += row_chunks(row, ids)
    name = rows[0].turn_client_id
    turn = history.turns.get(rows[0].turn or 0)
    metadata: Chunk = {"seq": rows[-1].seq}
    if turn is not None and name is not None:
        metadata = metadata_of(name, turn, rows[-1].seq)
    yield {
        "id": _row_id(rows[0].seq, None) if name is None else turn_reply_id(name),
        "role": "assistant",
        "metadata": metadata,
        "parts": parts_of(chunks),
    }


def _waiting(turn: LiveTurn) -> Chunk:
    return {
        "id": turn.turn,
        "role": "user",
        "metadata": {"turn": turn.turn, "seq": None, "status": "waiting"},
        "parts": [{"type": "text", "text": turn.text, "state": "done"}],
    }
