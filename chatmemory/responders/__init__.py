"""Who answers: found from the setting RESPONDER, and asked in one way, whatever it is."""

from __future__ import annotations

from chatmemory.responders.finding import find
from chatmemory.responders.values import Finished, Progress, Request, Responder, Step, Text

__all__ = ["Finished", "Progress", "Request", "Responder", "Step", "Text", "find"]
