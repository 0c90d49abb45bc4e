"""Sessions as text in one of several forms, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from chatmemory.models import SessionQuerySet
from chatmemory.services import Export
from chatmemory.services.pool import in_pool
from chatmemory.transfer import chats, jsonl, people
from chatmemory.transfer.reading import Reading, read_sessions

PIECES = 200
"""How many pieces of text are made in one step of the event loop's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How an export is written."""

    write: Callable[[Reading], Iterator[str]]
    suffix: str
    content_type: str
    head: str = ""
    """What comes before the first session."""


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
}
"""The forms by name; `jsonl` is the one that can be imported again without loss."""


def write_export(export: Export) -> Iterator[str]:
    """The text of an export that was begun by `begin_export`."""
    return export_sessions(export.sessions, form=export.form)


async def awrite_export(export: Export) -> AsyncIterator[str]:
    """The same for the event loop: the work is done on the threads of the pool, in steps."""
    text = write_export(export)
    while some := await _asome(text):
        yield some


def export_sessions(sessions: SessionQuerySet, *, form: str) -> Iterator[str]:
    """These sessions as text; memory doesn't grow with their number or length.

    Of each it shows the messages up to the last that it had when its turn came. This writes no
    audit entry: `begin_export` does. Raises KeyError for an unknown form, at once.
    """
    return _text(sessions, FORMS[form])


def _text(sessions: SessionQuerySet, form: Form) -> Iterator[str]:
    if form.head:
        yield form.head
    for reading in read_sessions(sessions):
        yield from form.write(reading)


def _some(text: Iterator[str]) -> str:
    """The next pieces of a text; empty at its end."""
    return "".join(islice(text, PIECES))


_asome = in_pool(_some)
