"""The steps of replies, as the page shows them; element/steps.js draws the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from chatmemory.codec import Steps
from chatmemory.models import StoredMessage
from chatmemory.rendering.budget import Share
from chatmemory.rendering.json import formatted, formatted_args
from chatmemory.rendering.text import visible

MAX_TEXT_CHARS = 30_000
"""The page truncates longer messages, with a link to the whole message."""
MIN_SECONDS = 0.1
MAX_PAGE_CHARS = 300_000
"""Maximum characters of all steps of a page; those of the oldest messages are truncated first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultEntry:
    """The result of a tool call, as the page shows it."""

    seq: int
    revision: int
    text: str
    is_cut: bool
    failed: bool
    redacted: bool
    quarantined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEntry:
    """A tool call with its result, or what a model thought before it, as the page shows it."""

    seq: int
    """Of the message with the call."""
    key: str
    name: str
    """Empty for a result without a name whose call is not on the page."""
    args: str
    """Of reasoning, the text."""
    args_cut: bool
    result: ResultEntry | None = None
    is_running: bool = False
    is_thought: bool = False
    duration: str = ""

    @property
    def state(self) -> str:
        """Return `running`, `done` or `failed`; `missing` if the run ended without a result."""
        if self.result is None:
            return "running" if self.is_running else "missing"
        return "failed" if self.result.failed else "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSteps:
    """The steps of a message, as the page shows them."""

    reasoning: str
    reasoning_cut: bool
    entries: list[StepEntry]
    """Its tool calls, and those of the messages without text that follow; a tool's own result."""

    @property
    def tools(self) -> list[StepEntry]:
        """The calls, without reasoning."""
        return [entry for entry in self.entries if not entry.is_thought]

    @property
    def running(self) -> str:
        """The name of a running tool."""
        return next((entry.name for entry in self.tools if entry.state == "running"), "")

    @property
    def failed(self) -> int:
        """How many tools have failed."""
        return sum(entry.state == "failed" for entry in self.tools)

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.entries)


def steps_of_rows(
    rows: Sequence[StoredMessage], *, running: str | None, person: Hashable = None
) -> dict[int, RowSteps]:
    """Return the steps of the rows by seq, without the rows that are the result of a call here.

    `running` is the name of the running turn, which can still give results. The time to indent JSON
    counts for the person, as in `rendering.markdown`.
    """
    found = {row.seq: row.steps() for row in rows}
    results = _results_of_calls(rows, found)
    folded = {row.seq for row in results.values()}
    room = _Room(Share(person))
    steps = {
        row.seq: _row_steps(row, found, results, running, room)
        for row in reversed(rows)
        if row.seq not in folded
    }
    return _grouped(rows, dict(reversed(steps.items())))


def whole_text(row: StoredMessage) -> str:
    """Return what readers see of a message: its reasoning, its text and its tool calls."""
    steps = row.steps(max_chars=sys.maxsize)
    reasoning = steps.reasoning.text if steps.reasoning else ""
    calls = (f"{call.name}\n{formatted_args(call.args, is_cut=False)}" for call in steps.calls)
    return "\n\n".join(filter(None, (reasoning, row.text, *calls)))


class _Room:
    """What a page can still show of its steps."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._chars = MAX_PAGE_CHARS

    def show(self, text: str, indented: Callable[[str], str] = str) -> tuple[str, bool]:
        """Return what the page shows of a text, and whether it is truncated."""
        max_chars = min(MAX_TEXT_CHARS, self._chars)
        shown = text[:max_chars]
        with self._share.counted():
            shown = visible(shown if self._share.is_spent() else indented(shown))
        self._chars = max(0, self._chars - len(shown))
        return shown, len(text) > max_chars


def _grouped(rows: Sequence[StoredMessage], steps: dict[int, RowSteps]) -> dict[int, RowSteps]:
    """Move the steps of a message without text to the one that it continues."""
    head: StoredMessage | None = None
    for row in rows:
        if (found := steps.get(row.seq)) is None:
            continue  # a result
        if head is not None and found.entries and _continues(row, head):
            steps[head.seq].entries.extend([*_thought(row, found), *found.entries])
            del steps[row.seq]
        else:
            head = row if found.entries else None
    return steps


def _continues(row: StoredMessage, head: StoredMessage) -> bool:
    is_bare = row.role == "tool" or not (row.text or row.redacted or row.status != "complete")
    return is_bare and row.turn_client_id == head.turn_client_id


def _thought(row: StoredMessage, steps: RowSteps) -> list[StepEntry]:
    text, is_cut = steps.reasoning, steps.reasoning_cut
    key = f"{row.seq}.{row.revision}.thought"
    entry = StepEntry(seq=row.seq, key=key, name="", args=text, args_cut=is_cut, is_thought=True)
    return [entry] if text else []


_Place = tuple[int, int]
"""The place of a call: the seq of its row, and its index there."""


def _results_of_calls(
    rows: Sequence[StoredMessage], found: Mapping[int, Steps]
) -> dict[_Place, StoredMessage]:
    """Return the results of calls. A result belongs to the last call before it with its id."""
    calls: dict[str, _Place] = {}
    results: dict[_Place, StoredMessage] = {}
    for row in rows:
        steps = found[row.seq]
        calls |= {call.id: (row.seq, index) for index, call in enumerate(steps.calls)}
        if steps.result and (place := calls.pop(steps.result.call, None)):
            results[place] = row
    return results


def _row_steps(
    row: StoredMessage,
    found: Mapping[int, Steps],
    results: Mapping[_Place, StoredMessage],
    running: str | None,
    room: _Room,
) -> RowSteps:
    steps = found[row.seq]
    entries: list[StepEntry] = []
    for index, call in enumerate(steps.calls):
        result = results.get((row.seq, index))
        args, is_cut = room.show(call.args, partial(formatted_args, is_cut=call.cut))
        entry = StepEntry(
            seq=row.seq,
            key=f"{row.seq}.{row.revision}.{index}",
            name=visible(call.name),
            args=args,
            args_cut=call.cut or is_cut,
            result=_result_entry(result, found[result.seq], room) if result else None,
            is_running=running is not None and row.turn_client_id == running,
            duration=_duration(row, result) if result else "",
        )
        entries.append(entry)
    reasoning, is_cut = room.show(steps.reasoning.text) if steps.reasoning else ("", False)
    return RowSteps(
        reasoning=reasoning,
        reasoning_cut=is_cut or (steps.reasoning is not None and steps.reasoning.cut),
        entries=[_step_of_result(row, steps, room)] if row.role == "tool" else entries,
    )


def _step_of_result(row: StoredMessage, steps: Steps, room: _Room) -> StepEntry:
    """Return the step for a result whose call is not on the page."""
    name = visible(steps.result.name) if steps.result else ""
    result = _result_entry(row, steps, room)
    key = f"{row.seq}.{row.revision}.0"
    return StepEntry(seq=row.seq, key=key, name=name, args="", args_cut=False, result=result)


def _duration(call: StoredMessage, result: StoredMessage) -> str:
    """Return how long a tool ran; empty below 0.1 s, as for messages that were stored together."""
    seconds = round((result.created_at - call.created_at).total_seconds(), 1)
    if seconds < MIN_SECONDS:
        return ""
    return _("%(seconds)s s") % {"seconds": number_format(seconds if seconds % 1 else int(seconds))}


def _result_entry(row: StoredMessage, steps: Steps, room: _Room) -> ResultEntry:
    text, is_cut = room.show(row.text, formatted)
    return ResultEntry(
        seq=row.seq,
        revision=row.revision,
        text=text,
        is_cut=is_cut,
        failed=steps.result is not None and steps.result.failed,
        redacted=row.redacted,
        quarantined=row.is_unreadable,
    )
