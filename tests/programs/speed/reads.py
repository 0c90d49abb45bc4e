"""The base classes of cases that read the newest messages of a filled session."""

from __future__ import annotations

from collections.abc import Sequence

from tests.programs.speed.database_cases import BaselineCase, DatabaseCase
from tests.programs.speed.texts import FILL_SIZE, filled, find_faults

ROWS = 1_000
LIMIT = 20


class NewestCase(DatabaseCase):
    """Reads the newest messages of a session with `ROWS`."""

    count_of_read: int | None = LIMIT
    """The number of messages that a read must return; None for any."""

    def prepare(self) -> None:
        super().prepare()
        self.fill(ROWS)

    def call(self) -> None:
        self.read()

    def read(self) -> list[str]:
        """Return the texts, oldest first."""
        raise NotImplementedError

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        batches = filled(ROWS)
        faults = find_faults(self.setup.key, batches, FILL_SIZE)
        texts = [text for batch in batches for text in batch]
        found = self.read()
        if not found or found != texts[-len(found) :]:
            faults.append("a read does not have the newest messages")
        if self.count_of_read not in (None, len(found)):
            faults.append(f"a read has {len(found)} messages, not {self.count_of_read}")
        return faults


class RawPage(NewestCase, BaselineCase):
    """Three columns as LangChain's messages."""

    def prepare(self) -> None:
        super().prepare()
        self.pk = self.session_pk

    def read(self) -> list[str]:
        return [str(message.content) for message in self.baseline.read(self.pk, ROWS - LIMIT, ROWS)]
