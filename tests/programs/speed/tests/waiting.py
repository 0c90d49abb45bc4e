"""Cases without Django or a database, in processes with the arguments UNIT CASE INDEX SCALE."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from tests.programs.speed.cases import Case, Plan, Scale, Setup, Unit
from tests.programs.speed.interleave import serve

COMMAND = (sys.executable, "-m", "tests.programs.speed.tests.waiting")

LISTEN = """
import os, socket, time
server = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
server.settimeout(60)
while True:
    server.accept()
"""


class Waiting(Case):
    """Waits; its name is `MILLISECONDS NAME`."""

    def call(self) -> None:
        time.sleep(int(self.setup.key.split()[0]) / 1000)

    def count(self) -> Mapping[str, int]:
        return {"statements": 0}

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        return [f"{sum(calls)} calls"]


def unit(*names: str, processes: int = 1, repeats_baseline: bool = False) -> Unit:
    """Return a unit of cases that wait; the first is the baseline of the others."""
    plans = [
        Plan(
            name=name,
            baseline=names[0] if number else None,
            processes=processes,
            command=COMMAND,
        )
        for number, name in enumerate(names)
    ]
    return Unit(
        title="", plans=lambda _: plans, calls=2, warmups=1, repeats_baseline=repeats_baseline
    )


if __name__ == "__main__":
    _, name, index, _ = sys.argv[1:]
    if name == "hanging":
        subprocess.run([sys.executable, "-c", LISTEN], check=False)  # noqa: S603  # our own
    if name == "broken":
        sys.exit("it cannot start")
    serve(Waiting(Setup(key=name, index=int(index), scale=Scale())))
