"""Responders: the code that produces replies, loaded from the setting RESPONDER."""

from __future__ import annotations

from chatmemory.responders.finding import find
from chatmemory.responders.values import Finished, Progress, Request, Responder, Step, Text

__all__ = ["Finished", "Progress", "Request", "Responder", "Step", "Text", "find"]
