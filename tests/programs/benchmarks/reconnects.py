"""Simulate clients that reconnect after a crash, without a server.

Usage: `python -m tests.programs.benchmarks.reconnects [CPU_MS]`, with the CPU time of one
connection.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

from chatmemory.client.pauses import max_pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """The connections after a crash, as one core serves them. Times are in seconds."""

    peak: int
    """The most connections that begin within a second."""
    last: float
    """When the last one begins, after the return of the server."""
    longest_wait: float
    """How long one waits for the core."""


def simulate(clients: int, down_seconds: float, cpu_seconds: float) -> Wave:
    """Return the connections of clients whose server was killed and is back after some seconds."""
    chance = random.Random(1)  # noqa: S311  # no secret
    starts = sorted(_first_success(down_seconds, chance) for _ in range(clients))
    is_free_at = longest_wait = 0.0
    for start in starts:
        is_free_at = max(is_free_at, start) + cpu_seconds
        longest_wait = max(longest_wait, is_free_at - start)
    peak = max(sum(low <= start < low + 1 for start in starts) for low in starts[::10])
    return Wave(peak=peak, last=starts[-1], longest_wait=longest_wait)


def _first_success(down_seconds: float, chance: random.Random) -> float:
    """Return when a client first finds the server, in seconds after its return."""
    now, failures = 0.0, 0
    while True:
        now += chance.uniform(0, max_pause(failures))
        if now >= down_seconds:
            return now - down_seconds
        failures += 1


if __name__ == "__main__":
    cpu_seconds = float(sys.argv[1]) / 1000 if len(sys.argv) > 1 else 0.003
    sys.stdout.write("clients  down s  peak in 1 s  last s  longest wait s\n")
    for clients in (100, 1_000, 5_000):
        for down_seconds in (0, 1, 3, 10):
            wave = simulate(clients, down_seconds, cpu_seconds)
            line = f"{clients:>7}{down_seconds:>8}{wave.peak:>13}{wave.last:>8.1f}"
            sys.stdout.write(f"{line}{wave.longest_wait:>16.2f}\n")
