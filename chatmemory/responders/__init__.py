"""Who answers: found from the setting RESPONDER, and asked in one way, whatever it is."""

from __future__ import annotations

from chatmemory.responders.finding import find
from chatmemory.responders.values import Finished, Request, Responder, Text

__all__ = ["Finished", "Request", "Responder", "Text", "find"]
