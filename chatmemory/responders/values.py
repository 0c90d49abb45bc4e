"""What a responder is given, and what it says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Literal

from chatmemory import codec
from chatmemory.codec import Asks
from chatmemory.models import Session

MAX_LABEL_CHARS = 100
"""Longest name or state of a `Progress`; the rest is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a responder is given."""

    session: Session
    """As it was when the run began."""
    turn: str
    """The turn's client_id."""
    messages: list[dict[str, object]]
    """The window, as plain messages; the user's is the last."""
    answers: Asks | None = None
    """What the turn before has asked, if the user's message answers it."""
    window_tokens: int = 0
    """Of the stored messages in the window, as counted when they were stored."""

    @property
    def thread(self) -> str:
        """The graph's thread: the turn, in a name that no other session has.

        A `client_id` alone would not do: each client makes its own.
        """
        return f"{self.session.pk}.{self.session.epoch}.{self.turn}"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the text that this step streams."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What the run is at, for whoever looks on just now; it is shown and not stored.

    A tool's name comes from a model: what is no plain line of text is cleaned and cut.
    """

    kind: Literal["thinking", "tool"]
    name: str
    """Of the tool; of a thought there may be none."""
    state: str
    """Such as started, ended, failed."""

    def __post_init__(self) -> None:
        if self.kind not in ("thinking", "tool"):
            raise ValueError(f"a progress is of kind thinking or tool, not {self.kind!a}")
        for field in ("name", "state"):
            value = getattr(self, field)
            if not isinstance(value, str):
                raise TypeError(f"{field} of a progress must be a text, not {type(value).__name__}")
            object.__setattr__(self, field, codec.label(value, MAX_LABEL_CHARS))


@dataclass(frozen=True, slots=True)
class Finished:
    """A whole message of the assistant or a tool. It ends the step, and stands for its text."""

    message: dict[str, object]


Step = Text | Progress | Finished

Responder = Callable[[Request], AsyncGenerator[Step, None]]
"""Answers a request in steps: pieces of text, if any, then the message that they make.

The last step is a message of the assistant that calls no tool; its text may be empty. Whoever
stops listening closes the generator, and with it the connection to the model.
Raises ModelTimeout, ModelUnavailable, ContextTooLong, and whatever the responder's own code raises.
"""
