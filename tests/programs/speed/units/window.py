"""The window that a model is given: 4,000 tokens."""

from __future__ import annotations

from chatmemory.codec import text_of
from chatmemory.models import Session
from chatmemory.window import read_window
from tests.programs.speed.cases import Plan, Unit
from tests.programs.speed.reads import NewestCase, RawPage


class ReadWindow(NewestCase):
    """`read_window`."""

    count_of_read = None

    def prepare(self) -> None:
        super().prepare()
        self.session = Session.objects.get(key=self.setup.key)

    def read(self) -> list[str]:
        return [text_of(message["content"]) for message in read_window(self.session).messages]


UNIT = Unit(
    title="Window of 4,000 tokens. Raw: a page of 20.",
    plans=lambda _: [
        Plan(name="raw page", make=RawPage),
        Plan(name="window", make=ReadWindow, baseline="raw page"),
    ],
)
