"""Write the `jsonl` form: JSON lines with all stored data, for an import without loss."""

from __future__ import annotations

from collections.abc import Iterator

from chatmemory import codec
from chatmemory.models import Turn
from chatmemory.transfer.columns import FEEDBACK, MESSAGE, NOTE, SESSION, TURN
from chatmemory.transfer.reading import Reading

VERSION = 1


def write(reading: Reading) -> Iterator[str]:
    """Write a line for the session, each turn, message and feedback, and one with their counts."""
    yield _line(
        "session", {"version": VERSION, **SESSION.write(reading.session), **_lists(reading)}
    )
    turns = messages = 0
    for row in reading.turns_and_rows():
        if isinstance(row, Turn):
            turns += 1
            yield _line("turn", TURN.write(row))
        else:
            messages += 1
            yield _line("message", MESSAGE.write(row))
    feedback = 0
    for given in reading.feedback():
        feedback += 1
        yield _line("feedback", FEEDBACK.write(given))
    more = {"feedback": feedback} if feedback else {}
    missing = {"missing": reading.missing} if reading.missing else {}
    yield _line("end", {"turns": turns, "messages": messages, **more, **missing})


def _lists(reading: Reading) -> dict[str, object]:
    """Return the tags and the notes, without empty lists."""
    lists = {"tags": sorted(reading.tags), "notes": [NOTE.write(note) for note in reading.notes]}
    return {name: values for name, values in lists.items() if values}


def _line(kind: str, values: dict[str, object]) -> str:
    return codec.dump_json({"type": kind, **values}) + "\n"
