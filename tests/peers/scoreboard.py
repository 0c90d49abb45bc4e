"""The scoreboard: what became of each test with each store, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chatmemory.testing.contract import MemoryContract

PASSED = "pass"
LEFT_OUT = "not offered"
NOT_ASKED = ""


@dataclass
class Cell:
    """A test with a store, in all the forms that it has."""

    outcomes: set[str] = field(default_factory=set)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    why: str = ""

    def __str__(self) -> str:
        if "failed" in self.outcomes:
            told = [f"{n} of {of} {kind}" for kind, (n, of) in self.counts.items()]
            return "**" + (", ".join(told) or self.why) + "**"
        if "passed" in self.outcomes:
            return PASSED
        return LEFT_OUT if self.why.startswith("not offered") else f"not run: {self.why}"


Cells = Mapping[tuple[str, str], Cell]
"""By column and test."""


@dataclass(frozen=True)
class Scenario:
    """One of the known failures: the test that stands for it, and where it was seen."""

    number: int
    what: str
    test: str
    columns: tuple[str, ...]


HISTORY = "InMemoryChatMessageHistory"
REDIS = "RedisChatMessageHistory"
POSTGRES = "PostgresChatMessageHistory"
SAVERS = ("LangGraph PostgresSaver", "LangGraph SqliteSaver")
SCENARIOS = [
    Scenario(1, "overlapping turns", "overlapping_turns_lose_nothing", (HISTORY,)),
    Scenario(2, "trim while the model thinks", "a_trim_while_the_model_thinks_stays", (HISTORY,)),
    Scenario(
        3, "purge while the model thinks", "a_removal_while_the_model_thinks_stays", (HISTORY,)
    ),
    Scenario(4, "a failed save", "a_failed_save_reaches_the_caller", (REDIS,)),
    Scenario(5, "two runs of one thread", "overlapping_turns_lose_nothing", SAVERS),
    Scenario(5, "processes, one thread", "turns_of_processes_lose_nothing", SAVERS),
    Scenario(6, "a thread deleted in a run", "a_removal_while_the_model_thinks_stays", SAVERS),
    Scenario(
        7,
        "a thread cleared in a run",
        "a_removal_while_the_model_thinks_stays",
        ("django-ai-assistant",),
    ),
    Scenario(
        7,
        "a crash in a run",
        "a_crash_while_the_model_thinks_keeps_the_words",
        ("django-ai-assistant",),
    ),
    Scenario(
        8,
        "order by the start of a transaction",
        "what_was_read_never_changes",
        ("OpenAI SQLAlchemySession",),
    ),
    Scenario(9, "pairs split", "processes_split_no_batch", (REDIS,)),
    Scenario(9, "a crash between push and expire", "a_crash_in_a_write_leaves_an_end", (REDIS,)),
    Scenario(10, "pairs split", "processes_split_no_batch", (POSTGRES,)),
    Scenario(10, "a transaction left open", "a_read_ends_its_transaction", (POSTGRES,)),
    Scenario(10, "NUL", "what_it_can_not_hold_is_refused", (POSTGRES,)),
    Scenario(11, "processes, one file", "processes_lose_nothing", ("FileChatMessageHistory",)),
    Scenario(12, "fields dropped", "a_message_comes_back_as_it_was", ("langchain-redis",)),
    Scenario(12, "reads cut", "a_long_history_comes_back_whole", ("langchain-redis",)),
    Scenario(
        13,
        "a history never pruned",
        "the_model_is_given_no_more_than_its_window",
        ("ConversationTokenBufferMemory",),
    ),
    Scenario(
        13,
        "a summary in the process",
        "a_new_process_knows_what_was_said",
        ("ConversationSummaryMemory",),
    ),
    Scenario(14, "a batch of 12", "the_newest_of_a_batch_are_kept", ("mem0",)),
    Scenario(
        15,
        "one buffer for two users",
        "a_turn_is_given_nothing_of_others",
        ("shared ConversationBufferMemory",),
    ),
    Scenario(
        16,
        "a restart",
        "the_memory_outlives_its_process",
        ("shared ConversationBufferMemory", HISTORY),
    ),
    Scenario(
        17, "read, change, write back", "processes_lose_nothing", ("read, changed, written back",)
    ),
]


def cells_of(results: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Cell]:
    """The results by column and test; what has several forms fails as a whole if one does."""
    cells: dict[tuple[str, str], Cell] = {}
    for result in results:
        cell = cells.setdefault((result["column"], result["test"].removeprefix("test_")), Cell())
        cell.outcomes.add(result["outcome"])
        for kind, count in result["counts"].items():
            cell.counts[kind] = max(cell.counts.get(kind, (0, 0)), tuple(count))
        cell.why = result["why"] or cell.why
    return cells


def titles() -> dict[str, str]:
    """What each test of the contract promises, in the order of its parts."""
    found = {}
    for part in MemoryContract.__mro__:
        for name, value in vars(part).items():
            if name.startswith("test_"):
                found[name.removeprefix("test_")] = str(value.__doc__).strip().rstrip(".")
    return found


def table(cells: Cells, columns: Sequence[str]) -> str:
    """Scenario by store."""
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    for test, title in titles().items():
        rows.append([title, *(str(cells.get((column, test), NOT_ASKED)) for column in columns)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def summary(cells: Cells, ours: Sequence[str]) -> str:
    """The known failures: with the store where they were seen, and with ours."""
    rows = [["#", "what", "store", "there", *ours], ["--:", *["---"] * (3 + len(ours))]]
    for scenario in SCENARIOS:
        for column in scenario.columns:
            there = cells.get((column, scenario.test), Cell(why="its environment was not made"))
            here = [str(cells.get((own, scenario.test), NOT_ASKED)) for own in ours]
            rows.append([str(scenario.number), scenario.what, column, str(there), *here])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
