"""The project's application for the servers of tests, which sweep more often."""

from __future__ import annotations

from project.asgi import application  # sets Django up

# isort: split

from chatmemory.live.hub import hub
from tests.limits import apply_limits

hub.sweep.seconds = 1.0
apply_limits()

without_sockets = application.application_mapping["http"]

__all__ = ["application", "without_sockets"]
