"""An async generator function as responder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from chatmemory.models import Session
from chatmemory.responders.values import Finished, Progress, Request, Responder, Step, Text

Piece = str | Progress | Mapping[str, object]
Generator = Callable[[list[dict[str, object]], Session], AsyncGenerator[Piece, None]]


def from_generator(function: Generator) -> Responder:
    """Adapt `f(messages, session)`, which yields text, plain messages for whole rows, or progress.

    A message of the assistant stands for the text yielded before it; before a tool's result, and
    at the end, that text becomes a message of its own.
    """

    async def respond(request: Request) -> AsyncGenerator[Step, None]:
        said: list[str] = []
        async with aclosing(function(request.messages, request.session)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    said.append(piece)
                    yield Text(piece)
                    continue
                if isinstance(piece, Progress):
                    yield piece
                    continue
                row = _row(piece)
                if said and row["role"] == "tool":
                    yield Finished(_message(said))
                said = []
                yield Finished(row)
        if said:
            yield Finished(_message(said))

    return respond


def _message(said: list[str]) -> dict[str, object]:
    return {"role": "assistant", "content": "".join(said)}


def _row(piece: object) -> dict[str, object]:
    if not isinstance(piece, Mapping):
        raise TypeError(
            f"a responder yields text, progress or messages, not {type(piece).__name__}"
        )
    if piece.get("role") not in ("assistant", "tool"):
        raise ValueError("a responder's message has the role assistant or tool")
    return dict(piece)
