"""The units of the benchmark: each module has a `UNIT`."""

from __future__ import annotations

UNITS = {
    name: f"tests.programs.speed.units.{name}"
    for name in (
        "append",
        "turn",
        "batch",
        "page",
        "window",
        "load",
        "writers",
        "growth",
        "sqlite",
        "ws",
        "users",
        "connect",
    )
}
"""The modules of the units, by name, in the order in which they run."""
