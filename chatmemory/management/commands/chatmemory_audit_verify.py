"""Verifies that the audit was not changed."""

from __future__ import annotations

from pathlib import Path

from django.core.management import CommandError, CommandParser

from chatmemory.errors import BadInput, MemoryUnavailable
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.management.sealing import verify_and_seal


class Command(InterruptibleCommand):
    """Prints a line for each finding, then what isn't sealed yet and the head of the chain."""

    help = (
        "Find entries of the audit that were edited, deleted, reordered, cut or forged, and seal "
        "the new ones if nothing is found. Keep the head that it prints elsewhere: given to a "
        "later run, it shows that the end of the audit was cut."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--head", default="", metavar="NUMBER:DIGEST", help="the head that an earlier run gave"
        )
        parser.add_argument(
            "--former-key-file",
            action="append",
            default=[],
            metavar="FILE",
            help="a file with an earlier key that is not in AUDIT_KEY_FALLBACKS; may be repeated",
        )
        parser.add_argument("--no-seal", action="store_true", help="leave new entries unsealed")
        parser.add_argument(
            "--seal-old",
            action="store_true",
            help="seal entries that have had no seal for days, too",
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
            trouble = verify_and_seal(
                self.stdout,
                head=head,
                former_keys=[_key_in(file) for file in former_key_file],
                seals=not no_seal,
                seals_old=seal_old,
            )
        except (BadInput, MemoryUnavailable) as error:
            raise CommandError(str(error)) from error
        if trouble:
            raise CommandError(trouble)


def _key_in(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} can't be read as a key: {type(error).__name__}.") from error
