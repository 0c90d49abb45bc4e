"""Cases that use a LangChain history, ours or another: add a turn, load a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from tests.programs.speed.cases import Case, Setup

USER_CHARS, REPLY_CHARS = 200, 600
CHUNK = 100
"""Messages that one call stores to fill a session."""

MakeHistory = Callable[[str], BaseChatMessageHistory]
"""Returns a new history object of a session."""


def turn_of(number: int) -> list[BaseMessage]:
    """Return a turn of which each number has another text."""
    return [
        HumanMessage(f"{number}.user ".ljust(USER_CHARS, "x")),
        AIMessage(f"{number}.reply ".ljust(REPLY_CHARS, "x")),
    ]


class HistoryCase(Case):
    """A session with `messages`; each call uses a new history object, as each chain call does."""

    def __init__(self, setup: Setup, make: MakeHistory, messages: int = 0) -> None:
        super().__init__(setup)
        self.make = make
        self.messages = messages
        self.added = 0
        """Turns in the session."""

    def prepare(self) -> None:
        while 2 * self.added < self.messages:
            turns = [turn_of(self.added + n) for n in range(CHUNK // 2)]
            self.history().add_messages([message for turn in turns for message in turn])
            self.added += len(turns)

    def history(self) -> BaseChatMessageHistory:
        return self.make(self.setup.key)

    def read(self) -> list[str]:
        return [str(message.content) for message in self.history().messages]

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        expected = [str(m.content) for number in range(self.added) for m in turn_of(number)]
        return [] if self.read() == expected else ["the history differs from what was added"]


class Add(HistoryCase):
    """Adds a turn."""

    def call(self) -> None:
        self.history().add_messages(turn_of(self.added))
        self.added += 1


class Load(HistoryCase):
    """Reads the whole session."""

    def call(self) -> None:
        self.read()


WORK: dict[str, tuple[type[HistoryCase], int]] = {
    "add of two": (Add, 0),
    "load of 100": (Load, 100),
    "load of 1,000": (Load, 1_000),
}
"""The compared work: the case, and the messages in its session."""
