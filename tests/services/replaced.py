"""Services with planted faults, for tests that must notice them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from chatmemory import services
from chatmemory.services.removal import vacuum
from chatmemory.services.retention import retention
from chatmemory.services.turns import claims, progress, recovery


def services_with(**replaced: Any) -> Any:
    """Return all services as attributes of one object, with these in place of the real ones."""
    modules = (claims, progress, recovery, retention, vacuum, services)
    merged: dict[str, Any] = {}
    for module in modules:
        merged |= vars(module)
    return SimpleNamespace(**merged | replaced)
