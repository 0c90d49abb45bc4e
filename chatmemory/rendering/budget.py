"""The limits of rendering: table cells, nesting, CPU time, and size of the HTML."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

MAX_SECONDS = 1.0
"""Maximum CPU time for one text. A usual one of 30,000 characters takes 0.1 s, the worst 1 s."""

MAX_CODE_SECONDS = 0.2
"""Maximum CPU time for the colors of all code in one text. Usual code of 10,000 characters takes
0.02 s."""

MAX_FORMULA_SECONDS = 0.5
"""Maximum CPU time for all formulas in one text. A usual one takes 0.0003 s."""

PERSON_SECONDS = 2.0
"""Maximum CPU time for all texts of one person in one minute of the clock, in each process. Above
it, texts are only escaped and JSON is not indented."""

MAX_TABLE_CELLS = 2_000
"""Maximum table cells in one text. A row gets all columns of its header, so 1,400 characters could
become 60,000 cells."""

MAX_NESTING = 18
"""Maximum depth of quotes and lists. The library drops the text of blocks below level 20."""

MAX_GROWTH = 16
"""Maximum characters of HTML for each character of text."""

FREE_CHARS = 4_096
"""Characters of HTML that any text may become, since short texts grow more."""

CHECK_EVERY = 64
"""Parser steps between two reads of the clock, each a system call."""


class OverBudget(Exception):
    """A block exceeds a limit, and is only escaped."""


class Share:
    """The CPU time that is left for the texts of one person in this minute of the clock.

    Counted in each process. Without a person nothing is limited.
    """

    def __init__(self, person: Hashable = None) -> None:
        self._person = person

    def is_spent(self) -> bool:
        return self._person is not None and _spent_by.seconds(self._person) >= PERSON_SECONDS

    def add(self, seconds: float) -> None:
        """Count CPU time."""
        if self._person is not None:
            _spent_by.add(self._person, seconds)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the CPU time of a part of the work."""
        started = time.thread_time()
        try:
            yield
        finally:
            self.add(time.thread_time() - started)


class _Spent:
    """The CPU time of each person in this minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._minute = 0
        self._seconds: dict[Hashable, float] = {}

    def seconds(self, person: Hashable) -> float:
        return self._seconds.get(person, 0.0) if self._minute == _minute() else 0.0

    def add(self, person: Hashable, seconds: float) -> None:
        with self._lock:
            if self._minute != (minute := _minute()):
                self._minute, self._seconds = minute, {}
            self._seconds[person] = self._seconds.get(person, 0.0) + seconds


def _minute() -> int:
    return int(time.time() // 60)


_spent_by = _Spent()


class Budget:
    """The resources that one text has left.

    All but the time depend only on the text up to the current block, so that a text that arrives in
    pieces is rendered like a stored one.
    """

    def __init__(self, share: Share) -> None:
        self.cells = MAX_TABLE_CELLS
        self.steps = 0
        self.is_spent = False
        self.is_refused = False
        """Whether the share of the person was spent: the text can be rendered later."""
        self.code_seconds = MAX_CODE_SECONDS
        self.formula_seconds = MAX_FORMULA_SECONDS
        self._share = share
        self._seconds = MAX_SECONDS
        self._counted_at = 0.0
        """The CPU time of the thread up to which it is counted."""
        self._text_chars = 0
        self._html_chars = 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the CPU time of a part of the work. Raises OverBudget if none is left."""
        self._check_share()
        self._counted_at = time.thread_time()
        try:
            yield
        finally:
            self._count_time()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Do not count the CPU time of work that is done once in a process."""
        self._count_time()
        try:
            yield
        finally:
            self._counted_at = time.thread_time()

    def count_step(self) -> None:
        """Raise OverBudget after MAX_SECONDS in total, or if the share of the person is spent."""
        self.steps += 1
        if self.steps % CHECK_EVERY == 0:
            self._count_time()
            self.is_spent = self.is_spent or self._seconds < 0
            self._check_share()

    def _count_time(self) -> None:
        now = time.thread_time()
        self._seconds -= now - self._counted_at
        self._share.add(now - self._counted_at)
        self._counted_at = now

    def _check_share(self) -> None:
        self.is_refused = self.is_refused or self._share.is_spent()
        if self.is_spent or self.is_refused:
            raise OverBudget

    def check_nesting(self, level: int) -> None:
        """Raise OverBudget for a block below MAX_NESTING."""
        if level >= MAX_NESTING:
            raise OverBudget

    def count_row(self, columns: int) -> None:
        """Count the cells of a row. Raises OverBudget above MAX_TABLE_CELLS, and counts nothing."""
        self.count_step()
        if columns > self.cells or not columns:
            raise OverBudget
        self.cells -= columns

    def add_text(self, chars: int) -> None:
        """Count the text of a block."""
        self._text_chars += chars

    def add_html(self, html: str) -> None:
        """Count the HTML of a block. Raises OverBudget above MAX_GROWTH, and counts nothing."""
        total = self._html_chars + len(html)
        if total > max(FREE_CHARS, MAX_GROWTH * self._text_chars):
            raise OverBudget
        self._html_chars = total

    def add_escaped(self, html: str) -> None:
        """Count the HTML of a block that is only escaped."""
        self._html_chars += len(html)
