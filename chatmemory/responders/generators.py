"""Adapts async generator functions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from chatmemory.models import Session
from chatmemory.responders.values import Finished, Progress, Request, Responder, Step, Text

Piece = str | Progress | Mapping[str, object]
Generator = Callable[[list[dict[str, object]], Session], AsyncGenerator[Piece, None]]


def from_generator(function: Generator) -> Responder:
    """Adapt `f(messages, session)`, which yields text, plain messages, or progress.

    An assistant message replaces the text that was yielded before it. Before the result of a tool,
    and at the end, that text becomes a message.
    """

    async def respond(request: Request) -> AsyncGenerator[Step, None]:
        texts: list[str] = []
        async with aclosing(function(request.messages, request.session)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    texts.append(piece)
                    yield Text(piece)
                    continue
                if isinstance(piece, Progress):
                    yield piece
                    continue
                row = _row_of_piece(piece)
                if texts and row["role"] == "tool":
                    yield Finished(_reply_of(texts))
                texts = []
                yield Finished(row)
        if texts:
            yield Finished(_reply_of(texts))

    return respond


def _reply_of(texts: list[str]) -> dict[str, object]:
    return {"role": "assistant", "content": "".join(texts)}


def _row_of_piece(piece: object) -> dict[str, object]:
    if not isinstance(piece, Mapping):
        raise TypeError(
            f"a responder must yield text, progress or messages, not {type(piece).__name__}"
        )
    if piece.get("role") not in ("assistant", "tool"):
        raise ValueError("the role of a responder's message must be assistant or tool")
    return dict(piece)
