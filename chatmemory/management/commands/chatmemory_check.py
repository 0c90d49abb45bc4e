"""The command that finds and repairs damage in the stored sessions."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import BadInput, NotFound
from chatmemory.management.counting import counted
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.management.owners import scope_of

_ACTOR = services.Actor.server("chatmemory_check")


class Command(InterruptibleCommand):
    """Prints one line per finding, then the number of findings of each kind."""

    help = (
        "Find gaps, duplicates, wrong counters, orphans, overdue turns, unreadable rows and tool "
        "calls without results. The output contains no message content. The exit status is 1 if "
        "findings remain."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--session", type=int, metavar="PK", help="only this session")
        parser.add_argument("--scope", help='only sessions of this scope, such as "user:1"')
        parser.add_argument(
            "--fix", action="store_true", help="repair all findings whose repair invents no content"
        )
        parser.add_argument("--json", action="store_true", help="print JSON lines")

    def handle(
        self,
        *,
        session: int | None,
        scope: str | None,
        fix: bool,
        json: bool,
        **options: object,
    ) -> None:
        self.as_json = json
        found: Counter[str] = Counter()
        fixed: Counter[str] = Counter()
        repair_by = _ACTOR if fix else None
        try:
            for finding in services.check_integrity(
                session_pk=session, scope=scope_of(None, scope), repair_by=repair_by
            ):
                self._show(finding)
                found[finding.code] += 1
                fixed[finding.code] += finding.is_fixed
        except (BadInput, NotFound) as error:
            raise CommandError(str(error)) from error
        self._print_counts(found, fixed)
        left = found.total() - fixed.total()
        if left:
            raise CommandError(f"{counted(left, 'finding')} not repaired.")

    def _show(self, finding: services.Finding) -> None:
        if self.as_json:
            self.stdout.write(json.dumps(asdict(finding)))
            return
        mark = " (repaired)" if finding.is_fixed else " (--fix repairs it)"
        end = mark if finding.is_fixable else ""
        self.stdout.write(f"session {finding.session_pk}: {finding.sentence}{end}")

    def _print_counts(self, found: Counter[str], fixed: Counter[str]) -> None:
        if self.as_json:
            self.stdout.write(json.dumps({"found": found, "fixed": +fixed}))
            return
        for code, count in sorted(found.items()):
            self.stdout.write(f"{code}: {count:,} found, {fixed[code]:,} repaired")
        if not found:
            self.stdout.write("nothing found")
