"""Write sessions as text in one of several formats, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from chatmemory.database.batches import Progress, reported
from chatmemory.database.pool import in_pool
from chatmemory.formats import chats, jsonl, people
from chatmemory.formats.reading import Reading, read_sessions
from chatmemory.models import SessionQuerySet
from chatmemory.services import Export

PIECES = 200
"""Pieces of text per call on a database thread, when the event loop reads an export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How an export is written."""

    write: Callable[[Reading], Iterator[str]]
    suffix: str
    content_type: str
    head: str = ""
    """Text before the first session."""
    separator: str = ""
    """Text between two sessions."""
    end: str = ""
    """Text after the last session."""


FORMATS = {
    "jsonl": Format(write=jsonl.write, suffix="jsonl", content_type="application/jsonl"),
    "langchain": Format(
        write=chats.write_langchain, suffix="jsonl", content_type="application/jsonl"
    ),
    "openai": Format(write=chats.write_openai, suffix="jsonl", content_type="application/jsonl"),
    "markdown": Format(write=people.write_markdown, suffix="md", content_type="text/markdown"),
    "csv": Format(
        write=people.write_csv,
        suffix="csv",
        content_type="text/csv",
        head="\ufeff" + people.csv_row(*people.HEADER),
    ),
    "own-json": Format(
        write=people.write_own_json,
        suffix="json",
        content_type="application/json",
        head="[",
        separator=",\n",
        end="]\n",
    ),
    "own-markdown": Format(
        write=people.write_own_markdown, suffix="md", content_type="text/markdown"
    ),
}
"""The formats by name; only `jsonl` can be imported again without loss."""


def write_export(export: Export, *, progress: Progress | None = None) -> Iterator[str]:
    """Write the text of an export that `begin_export` started.

    `progress` is called with the number of sessions that are written, and with their total.
    """
    readings = read_sessions(export.sessions)
    if progress is not None:
        readings = reported(readings, progress, export.session_count)
    return _file_text(readings, FORMATS[export.format])


async def awrite_export(export: Export) -> AsyncIterator[str]:
    """Write an export in an event loop; the pool's threads read the database."""
    async for pieces in aread_pieces(write_export(export)):
        yield pieces


async def aread_pieces(text: Iterator[str]) -> AsyncIterator[str]:
    """Read a text in an event loop, if each step may read the database."""
    while pieces := await _anext_pieces(text):
        yield pieces


def export_sessions(sessions: SessionQuerySet, *, format: str) -> Iterator[str]:
    """Write sessions as text; memory does not grow with their number or length.

    Of each session it writes the messages up to the newest when the session was read. It writes no
    audit entry; `begin_export` does. Raises KeyError for an unknown format, before any iteration.
    """
    return _file_text(read_sessions(sessions), FORMATS[format])


def _file_text(readings: Iterable[Reading], format: Format) -> Iterator[str]:
    if format.head:
        yield format.head
    for number, reading in enumerate(readings):
        if number and format.separator:
            yield format.separator
        yield from format.write(reading)
    if format.end:
        yield format.end


def _next_pieces(text: Iterator[str]) -> str:
    """Return the next `PIECES` pieces of a text, joined; empty at its end."""
    return "".join(islice(text, PIECES))


_anext_pieces = in_pool(_next_pieces)
