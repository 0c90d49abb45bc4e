"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "django-chatmemory",
    "Django",
    "channels",
    "langchain-core",
    "psycopg",
    "mysqlclient",
    "uvicorn",
    "websockets",
)
SYNCS = 100
BLOCK = b"x" * 4096


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """Return the name of the processor and the number of its cores."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else name}, {os.cpu_count()} cores"


def sync_seconds(folder: Path) -> float:
    """Return the median time of a write of 4 KiB with `fdatasync` in this folder."""
    sync = getattr(os, "fdatasync", os.fsync)
    times: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            begin = time.perf_counter()
            os.pwrite(file.fileno(), BLOCK, 0)
            sync(file.fileno())
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def load() -> str:
    """Return the load averages of 1 and 5 minutes."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg()[:2])
