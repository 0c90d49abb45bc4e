"""The input and output types of a responder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from chatmemory import codec
from chatmemory.codec import Question
from chatmemory.models import Session

MAX_LABEL_CHARS = 100
"""Maximum length of a name or state of `Progress`; longer ones are truncated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The input of a responder."""

    session: Session
    """The session as of the start of the run."""
    turn: str
    """The turn's client_id."""
    messages: list[dict[str, object]]
    """The window, as plain messages. The last one is the user's."""
    answers: Question | None = None
    """The questions of the previous turn, if the user's message answers them."""
    window_tokens: int = 0
    """Tokens of the stored messages in the window, as counted when they were stored."""

    @property
    def thread(self) -> str:
        """The thread id for a graph, unique for the turn across sessions and epochs.

        A `client_id` alone is unique only in its session.
        """
        return f"{self.session.pk}.{self.session.epoch}.{self.turn}"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a step's streamed text."""

    text: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A state of the run for open sockets; it is not stored.

    Names come from models, so control characters are removed and long names are truncated.
    """

    kind: Literal["thinking", "tool"]
    name: str
    """The tool's name; may be empty for thinking."""
    state: str
    """For example started, ended or failed."""

    def __post_init__(self) -> None:
        if self.kind not in ("thinking", "tool"):
            raise ValueError(f"the kind of a progress must be thinking or tool, not {self.kind!a}")
        for field in ("name", "state"):
            value = getattr(self, field)
            if not isinstance(value, str):
                raise TypeError(
                    f"{field} of a progress must be a string, not {type(value).__name__}"
                )
            object.__setattr__(self, field, codec.label(value, MAX_LABEL_CHARS))


@dataclass(frozen=True, slots=True)
class Finished:
    """A complete assistant or tool message, which ends the step and replaces its streamed text."""

    message: dict[str, object]


Step = Text | Progress | Finished

Responder = Callable[[Request], AsyncGenerator[Step, None]]
"""Yields the steps of a reply: optional pieces of text, then the message that they form.

The last step is an assistant message without tool calls; its text can be empty. Closing the
generator closes the connection to the model.
Raises ModelTimeout, ModelUnavailable, ContextTooLong, and the errors of the responder's own code.
"""

before_graph: list[Callable[[Any, Request], Awaitable[tuple[Any, Request]]]] = []
"""Functions of other apps that get each graph and its request, and return what is run instead."""
