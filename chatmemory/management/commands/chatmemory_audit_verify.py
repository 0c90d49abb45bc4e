"""The command that verifies and seals the audit."""

from __future__ import annotations

from pathlib import Path

from django.core.management import CommandError, CommandParser

from chatmemory.errors import BadInput, MemoryUnavailable
from chatmemory.management.exits import UsageError
from chatmemory.management.reporting import ReportingCommand
from chatmemory.management.sealing import verify_and_seal
from chatmemory.services.audit.seals import audit_state


class Command(ReportingCommand):
    """Prints one line per finding, the entries without a seal, and the head of the chain."""

    help = (
        "Find audit entries that were edited, deleted, reordered, truncated or forged; seal the "
        "new entries if there are no findings. Store the printed head outside of the database: "
        "with it, a later run (--head) detects that the end of the audit was deleted."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--head",
            default="",
            metavar="NUMBER:DIGEST",
            help="the head that an earlier run printed",
        )
        parser.add_argument(
            "--head-file",
            type=Path,
            metavar="FILE",
            help="verify against the head in this file, then store the new head in it; create it "
            "empty before the first run",
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
        head_file: Path | None,
        former_key_file: list[str],
        no_seal: bool,
        seal_old: bool,
        **options: object,
    ) -> None:
        if head and head_file:
            raise UsageError("Give either --head or --head-file.")
        try:
            problem = verify_and_seal(
                self,
                head=_text_of(head_file, "head") if head_file else head,
                former_keys=[_text_of(Path(file), "key") for file in former_key_file],
                seals=not no_seal,
                seals_old=seal_old,
            )
        except (BadInput, MemoryUnavailable) as error:
            raise CommandError(str(error)) from error
        if problem:
            raise CommandError(problem)
        if head_file:
            _store_head(audit_state().head, head_file)


def _text_of(file: Path, name: str) -> str:
    """Return what a file contains. Raises CommandError, also if it does not exist.

    A missing file of the head may be a disk that is not mounted: verification without a head would
    not find that the end of the audit was deleted.
    """
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"The {name} file {file} can't be read: {type(error).__name__}."
        ) from error


def _store_head(head: str, file: Path) -> None:
    """Replace the file, which is never empty in between. Raises CommandError."""
    new = file.with_name(f"{file.name}.new")
    try:
        new.write_text(f"{head}\n", encoding="utf-8")
        new.replace(file)
    except OSError as error:
        raise CommandError(
            f"The head file {file} can't be written: {type(error).__name__}."
        ) from error
