"""The newest 20 messages of a session."""

from __future__ import annotations

from chatmemory import services
from tests.programs.speed.cases import Plan, Unit
from tests.programs.speed.reads import LIMIT, ROWS, NewestCase, RawPage


class ReadPage(NewestCase):
    """`services.read_page`."""

    def read(self) -> list[str]:
        page = services.read_page(**self.address, limit=LIMIT)
        return [row.text for row in page.rows]


UNIT = Unit(
    title=f"Page of {LIMIT} of {ROWS:,} messages. Raw: three columns, LangChain's constructor.",
    plans=lambda _: [
        Plan(name="raw", make=RawPage),
        Plan(name="read_page", make=ReadPage, baseline="raw"),
    ],
)
