"""The limits of one rendering: table cells, nesting, CPU time, and size of the HTML."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

MAX_SECONDS = 1.0
"""Maximum CPU time for one text. A usual one of 30,000 characters takes 0.1 s, the worst 1 s."""

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


class Budget:
    """The resources that one text has left.

    All but the time depend only on the text up to the current block, so that a text that arrives in
    pieces is rendered like a stored one.
    """

    def __init__(self) -> None:
        self.cells = MAX_TABLE_CELLS
        self.steps = 0
        self.is_spent = False
        self._seconds = MAX_SECONDS
        self._until = 0.0
        self._text_chars = 0
        self._html_chars = 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the CPU time of a part of the work. Raises OverBudget if none is left."""
        if self.is_spent:
            raise OverBudget
        started = time.thread_time()
        self._until = started + self._seconds
        try:
            yield
        finally:
            self._seconds -= time.thread_time() - started

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Do not count the CPU time of work that is done once in a process."""
        started = time.thread_time()
        try:
            yield
        finally:
            seconds = time.thread_time() - started
            self._seconds += seconds
            self._until += seconds

    def count_step(self) -> None:
        """Raise OverBudget after MAX_SECONDS in total."""
        self.steps += 1
        if self.steps % CHECK_EVERY == 0 and time.thread_time() > self._until:
            self.is_spent = True
            raise OverBudget

    def check_nesting(self, level: int) -> None:
        """Raise OverBudget for a block below MAX_NESTING."""
        if level >= MAX_NESTING:
            raise OverBudget

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
