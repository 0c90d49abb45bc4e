"""The unit `compare` of the benchmark: LangChain histories of other packages beside ours.

Each runs in its environment of `make peers`, on the server of the benchmark's database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from django.db import connection
from langchain_core.chat_history import BaseChatMessageHistory

from chatmemory.langchain import DjangoChatMessageHistory
from tests.programs.speed.cases import BenchError, Case, Plan, Scale, Setup, Unit
from tests.programs.speed.counting import counted
from tests.programs.speed.histories import WORK

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENTS = ROOT / "var" / "peers"
PEERS = {
    "langchain-postgres": "langchain-postgres",
    "SQLChatMessageHistory": "langchain-community",
    "RedisChatMessageHistory": "langchain-community",
}
"""The compared histories, and the environment of each."""


def open_history(key: str) -> BaseChatMessageHistory:
    """Return our history."""
    return DjangoChatMessageHistory(key, owner=None)


class Ours(Case):
    """A case with our history, and its statements."""

    def __init__(self, setup: Setup, work: str) -> None:
        super().__init__(setup)
        case, messages = WORK[work]
        self.case = case(setup, open_history, messages)

    def prepare(self) -> None:
        self.case.prepare()

    def call(self) -> float | None:
        return self.case.call()

    def count(self) -> Mapping[str, int]:
        with counted() as counts:
            self.call()
        return counts

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        return self.case.find_faults(calls)

    def close(self) -> None:
        connection.close()


def plans(_: Scale) -> list[Plan]:
    """Return our cases, and those of the environments that exist. Raises BenchError if none."""
    found: list[Plan] = []
    installed = {name: env for name, env in PEERS.items() if (ENVIRONMENTS / env / "made").exists()}
    if not installed:
        raise BenchError(f"No environment in {ENVIRONMENTS}: run `make peers` first.")
    for work in WORK:
        own = f"ours, {work}"
        found.append(Plan(name=own, make=partial(Ours, work=work)))
        found += [
            Plan(
                name=f"{name}, {work}",
                baseline=own,
                command=(
                    str(ENVIRONMENTS / env / "bin" / "python"),
                    "-m",
                    "tests.programs.peers.speed_worker",
                ),
                env={"PYTHONPATH": str(ROOT)},
            )
            for name, env in installed.items()
        ]
    return found


UNIT = Unit(
    title="LangChain histories: time of other packages ÷ ours. Above 1 ours is faster.",
    plans=plans,
    calls=5,
)
