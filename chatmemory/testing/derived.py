"""Check that the derived rows of an app follow every removal of their messages."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db import models
from django.test import override_settings

from chatmemory import derived, services
from chatmemory.models.derived import DerivedRow, all_rows
from chatmemory.services import Actor
from chatmemory.services.integrity.database_restore import recover_restored_database
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.sessions import get_head

ROUNDS = 20
"""Random sequences of removals."""
MESSAGES = 6

Make = Callable[[int, int | None, str], DerivedRow]
"""Returns an unsaved row for a range of messages, with a text that contains their words."""


def check_derived_rows(model: type[DerivedRow], make: Make | None = None, *, seed: int = 0) -> None:
    """Assert that no word of a removed message stays in the rows of a model.

    Stores sessions whose messages contain known words, with rows that contain them too, and calls
    each service that removes messages, alone and in random order. `make(low, high, text)` returns
    an unsaved row; without it, `text` is written to each text field, except fields that a
    `DerivedFileRow` needs for its `clean_up`. Needs a test with a database,
    in which the sessions of the server's own scope are erased.
    Raises AssertionError with the removal and the word.
    """
    make = make or _maker(model)
    chosen = random.Random(seed)  # noqa: S311  # no secret
    sequences = [[event] for event in EVENTS]
    sequences += [chosen.choices(EVENTS, k=4) for _ in range(ROUNDS)]
    for number, events in enumerate(sequences):
        _Trial(model, make, f"derived-{number}", chosen).run(events)


class _Trial:
    """A session with rows of one model, and what may not be found any more."""

    def __init__(
        self, model: type[DerivedRow], make: Make, key: str, chosen: random.Random
    ) -> None:
        self.model = model
        self.make = make
        self.address: dict[str, Any] = {
            "session_key": key,
            "scope": services.SERVER,
            "by": Actor.server("check_derived_rows"),
        }
        self.chosen = chosen
        self.forbidden: set[str] = set()

    def run(self, events: list[str]) -> None:
        self.fill()
        done = []
        for event in events:
            if services.sessions_of(self.address["by"], services.SERVER).exists():
                getattr(self, event)()
                done.append(event)
                self.check(done)
        self.erase()
        self.check([*done, "erase"])

    def fill(self) -> None:
        """Store messages, and rows for each of them, each pair, and all from each one on."""
        services.append_messages(
            **self.address,
            messages=[{"role": "user", "content": self.word(n)} for n in self.seqs()],
            create=True,
        )
        for low in self.seqs():
            for high in (low, min(low + 1, MESSAGES), None):
                words = " ".join(map(self.word, range(low, (high or MESSAGES) + 1)))
                seen = derived.see(**self.address)
                if not derived.store(seen, [self.make(low, high, words)]):
                    raise AssertionError("The session was changed by another writer.")

    def seqs(self) -> range:
        return range(1, MESSAGES + 1)

    def word(self, seq: int) -> str:
        return f"canary-{self.address['session_key']}-{seq}-"

    def redact(self) -> None:
        page = services.read_page(**self.address, limit=MESSAGES)
        if page.rows:
            seq = self.chosen.choice(page.rows).seq
            services.redact_message(**self.address, seq=seq, reason="")
            if self.model.contains_words:
                self.forbidden.add(self.word(seq))

    def trim(self) -> None:
        services.trim_session(**self.address, keep_last=self.chosen.randrange(MESSAGES), reason="")
        floor = get_head(**self.address).first_seq
        self.hidden(seq for seq in self.seqs() if seq < floor)

    def clear(self) -> None:
        services.clear_session(**self.address, reason="")
        self.hidden(self.seqs())

    def purge(self) -> None:
        services.purge_session(**self.address, reason="")
        self.hidden(self.seqs())

    def hidden(self, seqs: Any) -> None:
        """Vacuum what a removal has hidden, as if `UNDO_DAYS` were over."""
        own = getattr(settings, "CHATMEMORY", {})
        with override_settings(CHATMEMORY={**own, "UNDO_DAYS": 0}):
            vacuum()
        self.forbidden.update(map(self.word, seqs))

    def restore_database(self) -> None:
        recover_restored_database(by=self.address["by"], reason="")
        self.forbidden.update(map(self.word, self.seqs()))

    def erase(self) -> None:
        services.erase_person(by=self.address["by"], scope=services.SERVER, reason="")
        self.forbidden.update(map(self.word, self.seqs()))

    def check(self, done: list[str]) -> None:
        text = repr(list(all_rows(self.model).values_list()))
        for word in self.forbidden:
            if word in text:
                label = self.model._meta.label
                raise AssertionError(f"{label} still contains {word!r} after {', '.join(done)}.")


EVENTS = ("redact", "trim", "clear", "purge", "restore_database", "erase")


def _maker(model: type[DerivedRow]) -> Make:
    needed = getattr(model, "needed", ())
    texts = {
        field.name
        for field in model._meta.concrete_fields
        if isinstance(field, models.CharField | models.TextField)
    }

    def make(low: int, high: int | None, text: str) -> DerivedRow:
        values = {name: f"{low}-{high}" if name in needed else text for name in texts}
        return model(low=low, high=high, **values)

    return make
