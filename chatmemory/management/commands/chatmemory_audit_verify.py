"""Looks whether anybody changed the audit."""

from __future__ import annotations

from pathlib import Path

from django.core.management import BaseCommand, CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import BadInput, MemoryUnavailable
from chatmemory.management.counting import counted


class Command(BaseCommand):
    """Prints a line for each finding, then what isn't sealed yet and the head of the chain."""

    help = (
        "Find entries of the audit that were edited, deleted, reordered or cut since they were "
        "sealed, and seal the new ones if there is nothing to find. Keep the head that it prints "
        "elsewhere: given to a later run, it shows that the end of the audit was cut."
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
            help="a file with a SECRET_KEY of earlier days that isn't in SECRET_KEY_FALLBACKS "
            "any more; may be given again",
        )
        parser.add_argument("--no-seal", action="store_true", help="leave new entries unsealed")

    def handle(
        self, *, head: str, former_key_file: list[str], no_seal: bool, **options: object
    ) -> None:
        keys = [_key_in(file) for file in former_key_file]
        try:
            found = self._verify_and_seal(head, keys, seals=not no_seal)
        except (BadInput, MemoryUnavailable) as error:
            raise CommandError(str(error)) from error
        if found:
            raise CommandError(f"{counted(found, 'finding')}; nothing was sealed.")

    def _verify_and_seal(self, head: str, former_keys: list[str], *, seals: bool) -> int:
        """Print the findings, seal if there are none, and return how many there are."""
        found = 0
        for finding in services.verify_audit(head=head, former_keys=former_keys):
            self.stdout.write(finding.sentence)
            found += 1
        state = services.audit_state()
        if state.oldest_unsealed is not None:
            since = state.oldest_unsealed.isoformat(timespec="seconds")
            self.stdout.write(
                f"{counted(state.unsealed, 'entry')} not sealed yet, the oldest of {since}"
            )
        if seals and not found:
            self.stdout.write(f"{services.seal_audit():,} sealed now")
            state = services.audit_state()
        self.stdout.write(f"head {state.head}" if state.head else "no entry is sealed")
        return found


def _key_in(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} can't be read as a key: {type(error).__name__}.") from error
