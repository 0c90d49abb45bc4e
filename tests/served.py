"""The project's application as the servers of tests run it: they sweep more often."""

from __future__ import annotations

from project.asgi import application  # sets Django up

# isort: split

from chatmemory import hub

hub.SWEEP_SECONDS = 1.0

__all__ = ["application"]
