"""The command that verifies and seals the audit."""

from __future__ import annotations

from pathlib import Path

from django.core.management import CommandError, CommandParser

from chatmemory.errors import BadInput, MemoryUnavailable
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.management.sealing import verify_and_seal


class Command(InterruptibleCommand):
    """Prints one line per finding, the entries without a seal, and the head of the chain."""

    help = (
        "Find audit entries that were edited, deleted, reordered, truncated or forged; seal the "
        "new entries if there are no findings. Store the printed head outside of the database: "
        "with it, a later run (--head) detects that the end of the audit was deleted."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--head",
            default="",
            metavar="NUMBER:DIGEST",
            help="the head that an earlier run printed",
        )
        parser.add_argument(
            "--former-key-file",
            action="append",
            default=[],
            metavar="FILE",
            help="a file with a former key that AUDIT_KEY_FALLBACKS lacks; can be repeated",
        )
        parser.add_argument("--no-seal", action="store_true", help="only verify")
        parser.add_argument(
            "--seal-old",
            action="store_true",
            help="also seal entries that have had no seal for several days",
        )

    def handle(
        self,
        *,
        head: str,
        former_key_file: list[str],
        no_seal: bool,
        seal_old: bool,
        **options: object,
    ) -> None:
        try:
            problem = verify_and_seal(
                self.stdout,
                head=head,
                former_keys=[_key_in(file) for file in former_key_file],
                seals=not no_seal,
                seals_old=seal_old,
            )
        except (BadInput, MemoryUnavailable) as error:
            raise CommandError(str(error)) from error
        if problem:
            raise CommandError(problem)


def _key_in(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"The key file {file} can't be read: {type(error).__name__}.") from error
