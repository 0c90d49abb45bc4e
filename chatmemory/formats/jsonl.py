"""Write the `jsonl` format: JSON lines with all stored data, for an import without loss."""

from __future__ import annotations

from collections.abc import Iterator

from chatmemory import codec
from chatmemory.formats.columns import FEEDBACK, MESSAGE, NOTE, SESSION, TURN, WITHDRAWN
from chatmemory.formats.reading import Reading
from chatmemory.models import Turn
from chatmemory.services.derived.removal import exported_rows

VERSION = 1


def write(reading: Reading) -> Iterator[str]:
    """Write a line for the session and each of its rows, and one with the counts of the rows."""
    yield _json_line(
        "session", {"version": VERSION, **SESSION.write(reading.session), **_lists(reading)}
    )
    turns = messages = 0
    for row in reading.turns_and_rows():
        if isinstance(row, Turn):
            turns += 1
            yield _json_line("turn", TURN.write(row))
        else:
            messages += 1
            yield _json_line("message", MESSAGE.write(row))
    feedback = 0
    for given in reading.feedback():
        feedback += 1
        yield _json_line("feedback", FEEDBACK.write(given))
    withdrawn = reading.withdrawn()
    for found in withdrawn:
        yield _json_line("withdrawn", WITHDRAWN.write(found))
    derived = 0
    for values in exported_rows(reading.session.pk):
        derived += 1
        yield _json_line("derived", values)
    counts = {"feedback": feedback, "withdrawn": len(withdrawn), "derived": derived}
    more = {name: count for name, count in counts.items() if count}
    missing = {"missing": reading.missing} if reading.missing else {}
    yield _json_line("end", {"turns": turns, "messages": messages, **more, **missing})


def _lists(reading: Reading) -> dict[str, object]:
    """Return the tags and the notes, without empty lists."""
    lists = {"tags": sorted(reading.tags), "notes": [NOTE.write(note) for note in reading.notes]}
    return {name: values for name, values in lists.items() if values}


def _json_line(kind: str, values: dict[str, object]) -> str:
    return codec.dump_json({"type": kind, **values}) + "\n"
