"""What a responder is given, and what it says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from chatmemory.models import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a responder is given."""

    session: Session
    """As it was when the run began."""
    turn: str
    """The turn's client_id; the thread of graphs."""
    messages: list[dict[str, object]]
    """The window, as plain messages; the user's is the last."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the text that this step streams."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A whole message of the assistant or a tool. It ends the step, and stands for its text."""

    message: dict[str, object]


Responder = Callable[[Request], AsyncGenerator[Text | Finished, None]]
"""Answers a request in steps: pieces of text, if any, then the message that they make.

The last step is a message of the assistant that calls no tool; its text may be empty. Whoever
stops listening closes the generator, and with it the connection to the model.
Raises ModelUnavailable, ModelTimeout, and whatever the responder's own code raises.
"""
