"""The export formats for people: Markdown, and CSV for spreadsheets.

They contain all stored messages, each with its state, such as hidden or replaced.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from chatmemory import codec
from chatmemory.formats.reading import Reading
from chatmemory.models import Feedback, Message, Session, SupersededRange, Turn
from chatmemory.services.turns.unstored import read_unstored

HEADER = (
    "session",
    "title",
    "session state",
    "number",
    "role",
    "time (UTC)",
    "state",
    "model",
    "tokens",
    "text",
    "data",
)

_SIGNS = (
    "=+@\u207a-\u207c\u208a-\u208c\u2212\u2a75\u2a76\ufb29\ufe62\ufe63\ufe66\ufe6b"
    "\uff0b\uff0d\uff1d\uff20-"
)
"""Characters whose compatibility form (NFKC) begins with one of =+-@, and the minus sign."""
_IGNORED = r"[^\w!-~\t\r\n]*"
"""Spaces, marks and control characters that a spreadsheet may ignore."""
_FORMULA = re.compile(rf"\A(?={_IGNORED}[\t\r\n{_SIGNS}])|(?<=[;\r\n])(?={_IGNORED}[{_SIGNS}])")
"""Where a formula may begin: also after a semicolon or a line break in the text. Spreadsheets in
some countries separate cells by semicolons, and then ignore quotes that follow commas."""

_VALUES: dict[int, str] = {Feedback.Value.GOOD: "good", Feedback.Value.BAD: "bad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A message, or the text of a turn that is not stored as a message, for display."""

    number: int | None
    role: str
    at: datetime
    states: list[str]
    model: str
    tokens: int | None
    text: str
    data: str
    """The whole message as JSON, if it is more than a text."""


def write_markdown(reading: Reading, *, is_own: bool = False) -> Iterator[str]:
    """Write a heading for the session and for each message, and each text in a fence.

    `is_own` leaves out what only the host reads.
    """
    session = reading.session
    names = [_code(name) for name in (session.title, session.key) if name]
    yield f"# {' · '.join(names)}\n\n"
    facts = [f"Created {_time_text(session.created_at)}", *_state_names(session)]
    yield f"{'; '.join(facts)}.\n\n"
    if session.instructions and not is_own:
        yield f"Instructions:\n\n{_fence(session.instructions)}\n"
    for entry in _entries(reading):
        number = "not yet stored" if entry.number is None else entry.number
        about = [f"{entry.role}, {_time_text(entry.at)}", *entry.states]
        about += [_code(entry.model)] if entry.model else []
        yield f"## {number}: {'; '.join(about)}\n\n{_fence(entry.text)}\n"
        if entry.data and not is_own:
            yield f"{_fence(entry.data, 'json')}\n"
    for given in reading.feedback():
        at = _time_text(given.changed_at)
        yield f"## Feedback on {given.user_seq}: {_VALUES[given.value]}, {at}\n\n"
        if given.reason:
            yield f"{_fence(given.reason)}\n"


def write_own_markdown(reading: Reading) -> Iterator[str]:
    """Write a session for its owner."""
    return write_markdown(reading, is_own=True)


def write_own_json(reading: Reading) -> Iterator[str]:
    """Write a session for its owner, as a JSON object."""
    session = reading.session
    about = {
        "key": session.key,
        "title": session.title,
        "created_at": session.created_at.isoformat(),
        "states": _state_names(session),
    }
    yield codec.dump_json(about).removesuffix("}") + ', "messages": ['
    separator = "\n"
    for entry in _entries(reading):
        message = {
            "number": entry.number,
            "role": entry.role,
            "at": entry.at.isoformat(),
            "states": entry.states,
            "model": entry.model,
            "text": entry.text,
        }
        yield separator + codec.dump_json(message)
        separator = ",\n"
    yield '],\n"feedback": ['
    separator = "\n"
    for given in reading.feedback():
        feedback = {
            "on": given.user_seq,
            "at": given.changed_at.isoformat(),
            "value": _VALUES[given.value],
            "reason": given.reason,
        }
        yield separator + codec.dump_json(feedback)
        separator = ",\n"
    yield "]}"


def write_csv(reading: Reading) -> Iterator[str]:
    """Write a row for each message; all cells are quoted, and no cell is a formula."""
    session = reading.session
    states = "; ".join(_state_names(session))
    for entry in _entries(reading):
        yield csv_row(
            session.key,
            session.title,
            states,
            entry.number,
            entry.role,
            _time_text(entry.at),
            "; ".join(entry.states),
            entry.model,
            entry.tokens,
            entry.text,
            entry.data,
        )


def csv_row(*cells: object) -> str:
    """Format a row of a CSV file."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerow(["" if cell is None else escape_formulas(str(cell)) for cell in cells])
    return out.getvalue()


def escape_formulas(text: str) -> str:
    """Insert an apostrophe wherever a formula may begin."""
    return _FORMULA.sub("'", text)


def _entries(reading: Reading) -> Iterator[Entry]:
    for row, superseded in reading.marked_rows():
        states = [] if row.status == Message.Status.COMPLETE else [row.status]
        states += [row.error] if row.error else []
        states += ["hidden"] if row.seq < reading.session.first_seq else []
        states += [] if superseded is None else [_superseded_state(superseded)]
        states += ["redacted"] if row.redacted else []
        states += [f"rated {_VALUES[row.feedback]}"] if row.feedback is not None else []
        states += ["unreadable"] if row.quarantined or "quarantined" in row.plain() else []
        yield Entry(
            number=row.seq,
            role=row.role,
            at=row.created_at,
            states=states,
            model=row.model,
            tokens=row.tokens,
            text=row.text,
            data=row.body or "",
        )
    running = reading.running()
    if running is not None:
        yield _of_turn(running, "assistant", running.partial)
    for turn in reading.waiting:
        yield _of_turn(turn, "user", turn.asked_text, turn.asked)
    for unstored in read_unstored(session=reading.session):
        turn = unstored.turn
        states = ["hidden"] if unstored.is_hidden else []
        if turn.asked:
            yield _of_turn(turn, "user", turn.asked_text, turn.asked, states)
        if turn.partial:
            yield _of_turn(turn, "assistant", turn.partial, states=states)


def _superseded_state(found: SupersededRange) -> str:
    return "withdrawn" if found.user_seq is None else "replaced"


def _of_turn(
    turn: Turn, role: str, text: str, asked: str = "", states: Sequence[str] = ()
) -> Entry:
    is_text = codec.decode("user", text, asked or None) == {"role": "user", "content": text}
    return Entry(
        number=None,
        role=role,
        at=turn.created_at,
        states=[turn.status, *states],
        model=turn.model,
        tokens=None,
        text=text,
        data="" if is_text else asked,
    )


def _state_names(session: Session) -> list[str]:
    moments = {
        "archived": session.archived_at,
        "on hold since": session.held_at,
        "expires": session.expires_at,
        "purged": session.removed_at,
    }
    return [f"{what} {_time_text(at)}" for what, at in moments.items() if at is not None]


def _time_text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _fence(text: str, kind: str = "") -> str:
    """Put a text in a fence longer than any fence in it."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{kind}\n{text}\n{fence}\n"


def _code(text: str) -> str:
    """Format a text as inline code; line breaks become spaces."""
    text = " ".join(text.split()) or " "
    ticks = "`" * (_longest_run(text) + 1)
    return f"{ticks} {text} {ticks}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
