"""Commands that report to people and to programs: text or JSON, and the progress of long work."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from django.core.management import CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from chatmemory.database.batches import Progress
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.management.progress import ProgressBar, add_progress_argument


class ReportingCommand(InterruptibleCommand):
    """A command with `--json`; call `report` for each result."""

    is_long = True
    """Whether the command also has `--progress`."""
    as_json = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--json", action="store_true", help="print JSON: one object on each line"
        )
        if self.is_long:
            add_progress_argument(parser)

    def execute(self, *args: Any, **options: Any) -> str | None:
        self.as_json = options["json"]
        self.is_progress_wanted = options.get("progress")
        try:
            return super().execute(*args, **options)
        finally:
            self.bar.clear()

    @cached_property
    def bar(self) -> ProgressBar:
        """The bar on standard error, which BaseCommand may replace before it calls `handle`."""
        return ProgressBar(self.stderr, is_wanted=self.is_progress_wanted)

    @property
    def progress(self) -> Progress | None:
        """The argument of services; None if no progress is shown, which saves a count."""
        return self.bar.show if self.bar.is_shown else None

    def report(self, text: str, /, **values: object) -> None:
        """Print a result: the text, or with `--json` the values."""
        self.bar.clear()
        self.stdout.write(json.dumps(values, cls=DjangoJSONEncoder) if self.as_json else text)
