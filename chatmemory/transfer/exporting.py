"""Write sessions as text in one of several forms, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from chatmemory.database.batches import Progress, reported
from chatmemory.database.pool import in_pool
from chatmemory.models import SessionQuerySet
from chatmemory.services import Export
from chatmemory.transfer import chats, jsonl, people
from chatmemory.transfer.reading import Reading, read_sessions

PIECES = 200
"""Pieces of text per call on a database thread, when the event loop reads an export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
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


FORMS = {
    "jsonl": Form(write=jsonl.write, suffix="jsonl", content_type="application/jsonl"),
    "langchain": Form(
        write=chats.write_langchain, suffix="jsonl", content_type="application/jsonl"
    ),
    "openai": Form(write=chats.write_openai, suffix="jsonl", content_type="application/jsonl"),
    "markdown": Form(write=people.write_markdown, suffix="md", content_type="text/markdown"),
    "csv": Form(
        write=people.write_csv,
        suffix="csv",
        content_type="text/csv",
        head="\ufeff" + people.csv_row(*people.HEADER),
    ),
    "own-json": Form(
        write=people.write_own_json,
        suffix="json",
        content_type="application/json",
        head="[",
        separator=",\n",
        end="]\n",
    ),
    "own-markdown": Form(
        write=people.write_own_markdown, suffix="md", content_type="text/markdown"
    ),
}
"""The forms by name; only `jsonl` can be imported again without loss."""


def write_export(export: Export, *, progress: Progress | None = None) -> Iterator[str]:
    """Write the text of an export that `begin_export` started.

    `progress` is called with the number of sessions that are written, and with their total.
    """
    readings = read_sessions(export.sessions)
    if progress is not None:
        readings = reported(readings, progress, export.session_count)
    return _text(readings, FORMS[export.form])


async def awrite_export(export: Export) -> AsyncIterator[str]:
    """Write an export in an event loop; the pool's threads read the database."""
    async for pieces in aread_pieces(write_export(export)):
        yield pieces


async def aread_pieces(text: Iterator[str]) -> AsyncIterator[str]:
    """Read a text in an event loop, if each step may read the database."""
    while pieces := await _anext_pieces(text):
        yield pieces


def export_sessions(sessions: SessionQuerySet, *, form: str) -> Iterator[str]:
    """Write sessions as text; memory does not grow with their number or length.

    Of each session it writes the messages up to the newest when the session was read. It writes no
    audit entry; `begin_export` does. Raises KeyError for an unknown form, before any iteration.
    """
    return _text(read_sessions(sessions), FORMS[form])


def _text(readings: Iterable[Reading], form: Form) -> Iterator[str]:
    if form.head:
        yield form.head
    for number, reading in enumerate(readings):
        if number and form.separator:
            yield form.separator
        yield from form.write(reading)
    if form.end:
        yield form.end


def _next_pieces(text: Iterator[str]) -> str:
    """Return the next `PIECES` pieces of a text, joined; empty at its end."""
    return "".join(islice(text, PIECES))


_anext_pieces = in_pool(_next_pieces)
