"""Server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator

MAX_EVENT_BYTES = 4 * 1024 * 1024


async def events_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the data of each event that has some. Raises ValueError for one that is too long.

    https://html.spec.whatwg.org/multipage/server-sent-events.html, without the field `retry` and
    names of events, which this server does not send. Not by a function that splits lines: it
    splits at characters that JSON may contain too.
    """
    buffer = bytearray()
    data: list[str] = []
    async for piece in pieces:
        searched = len(buffer)
        buffer += piece
        begin = 0
        while (end := buffer.find(b"\n", max(begin, searched))) >= 0:
            line = buffer[begin:end].removesuffix(b"\r").decode()
            begin = end + 1
            if line.startswith("data:"):
                data.append(line.removeprefix("data:").removeprefix(" "))
            elif not line and data:
                yield "\n".join(data)
                data.clear()
        del buffer[:begin]
        if len(buffer) > MAX_EVENT_BYTES:
            raise ValueError(f"An event has over {MAX_EVENT_BYTES} bytes.")
