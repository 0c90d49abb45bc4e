"""The verdict on a stage, and the summary of a run.

Time limits depend on the load of the machine. An exceeded one is therefore reported separately
from violations of data, with its own exit status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it needs Django, and the parent process of the stages has none
    from tests.programs.torture.checker import Violation


class Verdict(IntEnum):
    """The verdict on a stage; also its exit status."""

    GOOD = 0
    BROKEN = 1
    """The plan did not finish. The value is Python's exit status after an exception."""
    VIOLATED = 3
    """The data are wrong, or a limit was exceeded that holds on any machine."""
    SLOW = 4
    """Only time limits were exceeded."""
    SKIPPED = 5
    """A program that the plan needs is absent."""


class Absent(Exception):
    """A program that the plan needs is not installed; the text names it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number, and its bounds if it has any."""

    name: str
    value: float
    _: KW_ONLY
    at_most: float | None = None
    at_least: float | None = None
    time_limit: float | None = None
    """An upper bound for a duration, or for a number that depends on one."""

    @property
    def is_out_of_bounds(self) -> bool:
        is_over = self.at_most is not None and self.value > self.at_most
        return is_over or (self.at_least is not None and self.value < self.at_least)

    @property
    def is_slow(self) -> bool:
        return self.time_limit is not None and self.value > self.time_limit

    def __str__(self) -> str:
        bounds = {
            "at most": self.at_most,
            "at least": self.at_least,
            "time limit": self.time_limit,
        }
        shown = "".join(
            f" ({name} {bound:g})" for name, bound in bounds.items() if bound is not None
        )
        mark = "  <-- exceeded" if self.is_out_of_bounds or self.is_slow else ""
        return f"{self.name}: {self.value:.4g}{shown}{mark}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a plan. `violations` are of data; none is acceptable."""

    violations: Sequence[Violation]
    figures: Sequence[Figure] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        if self.violations or any(figure.is_out_of_bounds for figure in self.figures):
            return Verdict.VIOLATED
        return Verdict.SLOW if any(figure.is_slow for figure in self.figures) else Verdict.GOOD

    def __str__(self) -> str:
        return "; ".join(
            [
                _count(len(self.violations), "violation"),
                _count(sum(figure.is_out_of_bounds for figure in self.figures), "figure")
                + " out of bounds",
                _count(sum(figure.is_slow for figure in self.figures), "time limit") + " exceeded",
            ]
        )


def summary(verdicts: Mapping[object, Verdict]) -> tuple[list[str], int]:
    """Return the last lines of a run, one for each stage that is not good, and the exit status."""
    words = {
        Verdict.BROKEN: "DID NOT FINISH",
        Verdict.VIOLATED: "VIOLATED",
        Verdict.SLOW: "time limit exceeded",
        Verdict.SKIPPED: "skipped",
    }
    lines = [
        f"{words[kind]}: {stage}"
        for kind in words
        for stage, verdict in verdicts.items()
        if verdict is kind
    ]
    number = {kind: sum(verdict is kind for verdict in verdicts.values()) for kind in Verdict}
    lines.append(
        f"{_count(len(verdicts), 'stage')}: {number[Verdict.VIOLATED]} with violations, "
        f"{number[Verdict.BROKEN]} not finished, "
        f"{number[Verdict.SLOW]} with only time limits exceeded, {number[Verdict.GOOD]} good"
        f"{f', {number[Verdict.SKIPPED]} skipped' if number[Verdict.SKIPPED] else ''}."
    )
    is_empty = number[Verdict.SKIPPED] == len(verdicts)
    if is_empty or number[Verdict.VIOLATED] or number[Verdict.BROKEN]:
        return lines, 1
    return lines, Verdict.SLOW if number[Verdict.SLOW] else 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
