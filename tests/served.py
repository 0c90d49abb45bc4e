"""The project's application as the servers of tests run it: they sweep more often."""

from __future__ import annotations

from project.asgi import application  # sets Django up

# isort: split

from chatmemory import hub
from tests.limits import apply_limits

hub.SWEEP_SECONDS = 1.0
apply_limits()

without_sockets = application.application_mapping["http"]

__all__ = ["application", "without_sockets"]
