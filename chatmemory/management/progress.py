"""Progress of long work, on standard error."""

from __future__ import annotations

import argparse
import time

from django.core.management import CommandParser
from django.core.management.base import OutputWrapper

BAR_WIDTH = 30
"""In characters."""

DRAW_SECONDS = 0.1
LINE_SECONDS = 10.0
"""Between two lines, if standard error is no terminal."""


def add_progress_argument(parser: CommandParser) -> None:
    """Add `--progress` and `--no-progress`."""
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show the progress on standard error (default: only on a terminal)",
    )


class ProgressBar:
    """Shows the progress: a bar on a terminal, otherwise a line at the start, the end, and between.

    Lines are for logs, and only written if `--progress` is set.
    """

    def __init__(self, out: OutputWrapper, *, is_wanted: bool | None) -> None:
        self.out = out
        self.is_bar = self.out.isatty()
        self.is_shown = self.is_bar if is_wanted is None else is_wanted
        self.next_at = 0.0

    def show(self, done: int, total: int | None, text: str = "") -> None:
        """Draw it, if the last time is long enough ago."""
        is_end = done == total and not self.is_bar
        if not self.is_shown or (time.monotonic() < self.next_at and not is_end):
            return
        self.next_at = time.monotonic() + (DRAW_SECONDS if self.is_bar else LINE_SECONDS)
        share = None if total is None else (done / total if total else 1.0)
        text = text or (f"{done:,}" if total is None else f"{done:,} of {total:,}")
        if not self.is_bar:
            self.out.write(text if share is None else f"{share:4.0%}  {text}", style_func=str)
        elif share is None:
            self._draw(text)
        else:
            self._draw(f"[{'#' * round(share * BAR_WIDTH):<{BAR_WIDTH}}] {share:4.0%}  {text}")

    def clear(self) -> None:
        """Remove the bar, so that other output starts on an empty line."""
        if self.is_shown and self.is_bar:
            self._draw("")
            self.next_at = 0.0

    def _draw(self, text: str) -> None:
        self.out.write(f"\r\x1b[K{text}", style_func=str, ending="")
        self.out.flush()
