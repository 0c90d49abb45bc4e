"""A whole history through LangChain's history class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from chatmemory.langchain import DjangoChatMessageHistory
from tests.programs.speed.cases import Plan, Scale, Setup, Unit
from tests.programs.speed.database_cases import BaselineCase, DatabaseCase
from tests.programs.speed.texts import filled

SHORT = 100


class Load(DatabaseCase):
    """`DjangoChatMessageHistory.messages` of a new object."""

    def __init__(self, setup: Setup, messages: int) -> None:
        super().__init__(setup)
        self.messages = messages

    def prepare(self) -> None:
        super().prepare()
        self.fill(self.messages)

    def call(self) -> None:
        self.read()

    def read(self) -> list[str]:
        history = DjangoChatMessageHistory(self.setup.key, owner=None)
        return [str(message.content) for message in history.messages]

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        is_same = self.read() == [text for batch in filled(self.messages) for text in batch]
        return [] if is_same else ["the history differs from what was stored"]


class RawLoad(Load, BaselineCase):
    """Three columns as LangChain's messages."""

    def prepare(self) -> None:
        super().prepare()
        self.pk = self.session_pk

    def read(self) -> list[str]:
        return [str(message.content) for message in self.baseline.read(self.pk, 0, self.messages)]


def plans(scale: Scale) -> list[Plan]:
    """Return the cases for the long history, then for the short one."""
    found: list[Plan] = []
    for messages in (scale.history, SHORT):
        raw = f"raw {messages:,}"
        found += [
            Plan(name=raw, make=partial(RawLoad, messages=messages)),
            Plan(name=f"history {messages:,}", make=partial(Load, messages=messages), baseline=raw),
        ]
    return found


UNIT = Unit(
    title="Load of a history by the history class. Raw: three columns, LangChain's constructor.",
    plans=plans,
    calls=5,
)
