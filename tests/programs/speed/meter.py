"""CPU time of processes, from Linux's `/proc/PID/task/*/schedstat` (nanoseconds)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def own_cpu() -> float:
    """Return the CPU seconds of this process, all threads."""
    # Not schedstat, which for a running thread is older by up to one tick.
    return time.process_time()


def cpu_of(pid: int) -> float | None:
    """Return the CPU seconds of another process, its living threads; None if it is unknown."""
    total, is_known = 0, False
    with suppress(OSError, ValueError, IndexError):
        for task in (PROC / str(pid) / "task").iterdir():
            with suppress(FileNotFoundError):  # the thread has ended
                total += int((task / "schedstat").read_text().split()[0])
                is_known = True
    return total / 1e9 if is_known else None


def cpu_by_process(pids: Iterable[int]) -> dict[int, float]:
    """Return the CPU seconds of those processes that this machine has."""
    found = {pid: cpu_of(pid) for pid in pids}
    return {pid: cpu for pid, cpu in found.items() if cpu is not None}


def is_backend(pid: int) -> bool:
    """Whether a process of this machine is PostgreSQL's: the server may be on another one."""
    try:
        return (PROC / str(pid) / "comm").read_text().startswith("postgres")
    except OSError:
        return False
