"""The scoreboard: the result of each test with each store, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chatmemory.testing.contract import ConcurrentWriters, MemoryContract

PASSED = "pass"
NOT_OFFERED = "not offered"
NOT_RUN = ""
BY_CHANCE = " ≈"
"""Behind a result that depends on the order of threads and processes."""


@dataclass
class Cell:
    """The results of a test with a store, of all its variants."""

    outcomes: set[str] = field(default_factory=set)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    why: str = ""
    is_by_chance: bool = False

    def __str__(self) -> str:
        if "failed" in self.outcomes:
            counts = [f"{n}/{of} {kind}" for kind, (n, of) in self.counts.items()]
            mark = BY_CHANCE if self.is_by_chance else ""
            return "**" + (", ".join(counts) or self.why) + "**" + mark
        if "passed" in self.outcomes:
            return PASSED
        return NOT_OFFERED if self.why.startswith("not offered") else f"not run: {self.why}"


Cells = Mapping[tuple[str, str], Cell]
"""By column and test."""


@dataclass(frozen=True)
class Scenario:
    """A known failure, the test that reproduces it, and the stores in which it was seen."""

    number: int
    what: str
    test: str
    columns: tuple[str, ...]


HISTORY = "InMemoryChatMessageHistory"
REDIS = "RedisChatMessageHistory"
POSTGRES = "PostgresChatMessageHistory"
SAVERS = ("LangGraph PostgresSaver", "LangGraph AsyncPostgresSaver", "LangGraph SqliteSaver")
SESSIONS = ("OpenAI SQLiteSession", "OpenAI SQLAlchemySession")
SCENARIOS = [
    Scenario(1, "overlapping turns", "overlapping_turns_lose_nothing", (HISTORY,)),
    Scenario(2, "trim while the model thinks", "a_trim_while_the_model_thinks_remains", (HISTORY,)),
    Scenario(
        3, "purge while the model thinks", "a_removal_while_the_model_thinks_remains", (HISTORY,)
    ),
    Scenario(4, "a failed save", "a_failed_save_reaches_the_caller", (REDIS,)),
    Scenario(5, "two runs of one thread", "overlapping_turns_lose_nothing", SAVERS),
    Scenario(5, "processes, one thread", "turns_of_processes_lose_nothing", SAVERS),
    Scenario(6, "a thread deleted in a run", "a_removal_while_the_model_thinks_remains", SAVERS),
    Scenario(6, "a session cleared in a run", "a_removal_while_the_model_thinks_remains", SESSIONS),
    Scenario(
        7,
        "a thread cleared in a run",
        "a_removal_while_the_model_thinks_remains",
        ("django-ai-assistant",),
    ),
    Scenario(
        7,
        "a crash in a run",
        "a_crash_while_the_model_thinks_keeps_the_user_message",
        ("django-ai-assistant",),
    ),
    Scenario(
        8,
        "order by the start of a transaction",
        "rows_that_were_read_never_change",
        ("OpenAI SQLAlchemySession",),
    ),
    Scenario(9, "pairs split", "processes_split_no_batch", (REDIS,)),
    Scenario(9, "a crash between push and expire", "a_killed_writer_leaves_an_expiry", (REDIS,)),
    Scenario(10, "pairs split", "processes_split_no_batch", (POSTGRES,)),
    Scenario(10, "a transaction left open", "a_read_ends_its_transaction", (POSTGRES,)),
    Scenario(10, "NUL", "unstorable_text_is_kept_or_refused", (POSTGRES,)),
    Scenario(11, "processes, one file", "processes_lose_nothing", ("FileChatMessageHistory",)),
    Scenario(
        13,
        "a history never pruned",
        "the_model_is_given_no_more_than_its_window",
        ("ConversationTokenBufferMemory",),
    ),
    Scenario(
        13,
        "a summary in the process",
        "a_new_process_knows_earlier_messages",
        ("ConversationSummaryMemory",),
    ),
    Scenario(14, "a batch of 12", "the_newest_of_a_batch_are_kept", ("mem0",)),
    Scenario(
        15,
        "one buffer for two users",
        "the_model_is_given_nothing_of_others",
        ("shared ConversationBufferMemory",),
    ),
    Scenario(
        16,
        "a restart",
        "the_memory_survives_its_process",
        ("shared ConversationBufferMemory", HISTORY),
    ),
    Scenario(
        17, "read, change, write back", "processes_lose_nothing", ("read, changed, written back",)
    ),
]


def cells_of(results: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Cell]:
    """Group the results by column and test; a test fails if one of its variants fails."""
    cells: dict[tuple[str, str], Cell] = {}
    for result in results:
        chance = hasattr(ConcurrentWriters, result["test"])
        address = (result["column"], result["test"].removeprefix("test_"))
        cell = cells.setdefault(address, Cell(is_by_chance=chance))
        cell.outcomes.add(result["outcome"])
        for kind, count in result["counts"].items():
            cell.counts[kind] = max(cell.counts.get(kind, (0, 0)), tuple(count))
        cell.why = result["why"] or cell.why
    return cells


def titles() -> dict[str, str]:
    """Return what each test of the contract promises, by name, in the order of its parts."""
    found = {}
    for part in MemoryContract.__mro__:
        for name, value in vars(part).items():
            if name.startswith("test_"):
                found[name.removeprefix("test_")] = str(value.__doc__).strip().rstrip(".")
    return found


def group(cells: Cells, columns: Sequence[str]) -> str:
    """Return the results of some stores: a table of what not all kept, and counts of the rest.

    Stores that were not run have a line each instead of a column.
    """
    found = titles()
    idle = {column: why for column in columns if (why := _why_not_run(cells, column))}
    shown = [column for column in columns if column not in idle]
    results = {test: [str(cells.get((own, test), NOT_RUN)) for own in shown] for test in found}
    same = {test: row[0] for test, row in results.items() if len({*row}) == 1}
    kept = [test for test, cell in same.items() if cell == PASSED]
    missing = [test for test, cell in same.items() if cell == NOT_OFFERED]
    rest = [test for test in found if test not in kept and same.get(test) != NOT_OFFERED]
    lines = [f"{column} was {why}.\n" for column, why in idle.items()]
    if not shown:
        return "\n".join(lines)
    if rest:
        lines += [_table(["", *shown], [[found[test], *results[test]] for test in rest])]
    counts = f"Kept by all: {'the other ' if rest or missing else ''}{len(kept)} of {len(found)}."
    if missing:
        counts += f" Not offered: {len(missing)}."
    return "\n".join([*lines, counts + "\n"])


ROW_TESTS = {
    "overlapping turns": "overlapping_turns_lose_nothing",
    "turns of processes": "turns_of_processes_lose_nothing",
    "trim in a turn": "a_trim_while_the_model_thinks_remains",
    "removal in a turn": "a_removal_while_the_model_thinks_remains",
    "crash in a turn": "a_crash_while_the_model_thinks_keeps_the_user_message",
    "concurrent reads": "rows_that_were_read_never_change",
}
"""The promises that a saver or a session breaks where two calls meet, by their heads."""


def rows(cells: Cells, stores: Sequence[str]) -> str:
    """Return a table with a row for each of these stores, and how many promises it kept."""
    lines = []
    for store in stores:
        results = [str(cells[store, test]) for test in titles() if (store, test) in cells]
        offered = len(results) - results.count(NOT_OFFERED)
        shown = [str(cells.get((store, test), NOT_RUN)) for test in ROW_TESTS.values()]
        lines.append([store, *shown, f"{results.count(PASSED)} of {offered}"])
    return _table(["", *ROW_TESTS, "kept"], lines)


def not_offered(cells: Cells, groups: Mapping[str, Sequence[str]]) -> str:
    """List what no store of a group offers, and those groups; of all that have one, "all"."""
    missing = {
        title: [name for name, columns in groups.items() if _is_missing(cells, columns, test)]
        for test, title in titles().items()
    }
    lacking = [name for name in groups if any(name in names for names in missing.values())]
    return "".join(
        f"- {title}: {'all' if names == lacking else '; '.join(names)}\n"
        for title, names in missing.items()
        if names
    )


def _is_missing(cells: Cells, columns: Sequence[str], test: str) -> bool:
    shown = [column for column in columns if not _why_not_run(cells, column)]
    return {str(cells.get((column, test), NOT_RUN)) for column in shown} == {NOT_OFFERED}


def _why_not_run(cells: Cells, column: str) -> str:
    results = {str(cells.get((column, test), NOT_RUN)) for test in titles()}
    return results.pop() if len(results) == 1 and str(*results).startswith("not run") else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], first: str = "---") -> str:
    lines = [head, [first, *["---"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def summary(cells: Cells, ours: Sequence[str]) -> str:
    """Return the table of known failures, in the store where they were seen and in ours."""
    rows = []
    for scenario in SCENARIOS:
        for column in scenario.columns:
            theirs = cells.get((column, scenario.test), Cell(why="its environment was not created"))
            results = {own: str(cells.get((own, scenario.test), NOT_RUN)) for own in ours}
            same = {*results.values()}
            own = same.pop() if len(same) == 1 else "; ".join(map(": ".join, results.items()))
            rows.append([str(scenario.number), scenario.what, column, str(theirs), own])
    return _table(["#", "what", "store", "result", "ours"], rows, first="--:")
