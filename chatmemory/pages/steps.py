"""The steps of replies, as the page shows them; chat/steps.js draws the same."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chatmemory.codec import Steps
from chatmemory.models import StoredMessage
from chatmemory.rendering.json import formatted, formatted_args
from chatmemory.rendering.text import visible

MAX_TEXT_CHARS = 30_000
"""The page truncates longer messages, with a link to the whole message."""


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
    """A tool call with its result, as the page shows it."""

    name: str
    """Empty for a result without a name whose call is not on the page."""
    args: str
    args_cut: bool
    result: ResultEntry | None
    is_running: bool

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
    """Its tool calls; of a tool's message, its result."""

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.entries)


def steps_of_rows(rows: Sequence[StoredMessage], *, running: str | None) -> dict[int, RowSteps]:
    """Return the steps of the rows by seq, without the rows that are the result of a call here.

    `running` is the name of the running turn, which can still give results.
    """
    found = {row.seq: row.steps() for row in rows}
    results = _results(rows, found)
    folded = {row.seq for row in results.values()}
    return {
        row.seq: _row_steps(row, found, results, running) for row in rows if row.seq not in folded
    }


def whole_text(row: StoredMessage) -> str:
    """Return what readers see of a message: its reasoning, its text and its tool calls."""
    steps = row.steps(max_chars=sys.maxsize)
    reasoning = steps.reasoning.text if steps.reasoning else ""
    calls = (f"{call.name}\n{formatted_args(call.args, is_cut=False)}" for call in steps.calls)
    return "\n\n".join(filter(None, (reasoning, row.text, *calls)))


_Place = tuple[int, int]
"""The place of a call: the seq of its row, and its index there."""


def _results(
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
) -> RowSteps:
    steps = found[row.seq]
    entries = [
        StepEntry(
            name=visible(call.name),
            args=visible(formatted_args(call.args, is_cut=call.cut)),
            args_cut=call.cut,
            result=_result_entry(result, found[result.seq]) if result else None,
            is_running=running is not None and row.turn_client_id == running,
        )
        for index, call in enumerate(steps.calls)
        for result in [results.get((row.seq, index))]
    ]
    return RowSteps(
        reasoning=visible(steps.reasoning.text) if steps.reasoning else "",
        reasoning_cut=steps.reasoning is not None and steps.reasoning.cut,
        entries=[_step_of_result(row, steps)] if row.role == "tool" else entries,
    )


def _step_of_result(row: StoredMessage, steps: Steps) -> StepEntry:
    """Return the step for a result whose call is not on the page."""
    name = visible(steps.result.name) if steps.result else ""
    result = _result_entry(row, steps)
    return StepEntry(name=name, args="", args_cut=False, result=result, is_running=False)


def _result_entry(row: StoredMessage, steps: Steps) -> ResultEntry:
    text = row.text[:MAX_TEXT_CHARS]
    return ResultEntry(
        seq=row.seq,
        revision=row.revision,
        text=visible(formatted(text)),
        is_cut=len(row.text) > MAX_TEXT_CHARS,
        failed=steps.result is not None and steps.result.failed,
        redacted=row.redacted,
        quarantined=row.is_unreadable,
    )
