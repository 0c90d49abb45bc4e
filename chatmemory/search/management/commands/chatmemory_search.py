"""The command that writes, checks and deletes the search index."""

from __future__ import annotations

from django.core.management import CommandError, CommandParser

from chatmemory.errors import MemoryUnavailable
from chatmemory.management.counting import counted
from chatmemory.management.reporting import ReportingCommand
from chatmemory.search.indexing import index_all
from chatmemory.search.integrity import drop_index, find_wrong_blocks


class Command(ReportingCommand):
    """Can be stopped at any time and run again; blocks no writer for long."""

    help = (
        "Write the search index of messages that have none, which servers do for new messages "
        "meanwhile. `check` compares it with the messages, and exits with 1 if it is wrong. `drop` "
        "deletes it: searches are slower until it is written again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "action", nargs="?", choices=["index", "check", "drop"], default="index"
        )

    def handle(self, *, action: str, **options: object) -> None:
        try:
            {"index": self.index, "check": self.check_blocks, "drop": self.drop}[action]()
        except MemoryUnavailable as error:
            raise CommandError(f"{error} Run this again to continue.") from error

    def index(self) -> None:
        """Write what is missing."""
        done = index_all(progress=self.progress)
        text = f"{counted(done.blocks, 'block')} of {counted(done.sessions, 'conversation')}"
        if not done.is_complete:
            text += "; some changed meanwhile: run this again"
        self.report(text, blocks=done.blocks, sessions=done.sessions, complete=done.is_complete)

    def check_blocks(self) -> None:
        """Compare each block with its messages."""
        wrong = 0
        for found in find_wrong_blocks(progress=self.progress):
            wrong += 1
            self.report(
                f"conversation {found.session_pk}, messages {found.low} to {found.high}: "
                f"{found.problem}",
                session=found.session_pk,
                low=found.low,
                high=found.high,
                problem=found.problem,
            )
        if wrong:
            raise CommandError(
                f"{counted(wrong, 'wrong block')}. Run `chatmemory_search drop`, then "
                "`chatmemory_search`."
            )
        self.report("The index is right.", wrong=0)

    def drop(self) -> None:
        """Delete all blocks."""
        deleted = drop_index(progress=self.progress)
        self.report(f"{counted(deleted, 'block')} deleted", blocks=deleted)
