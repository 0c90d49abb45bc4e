"""Looks for damage in the sessions, and repairs what can be."""

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
    """Prints a line for each finding, then how many there were of each kind."""

    help = (
        "Find gaps, doubles, wrong counters, orphans, overdue turns, rows that can't be read and "
        "broken pairs of tool calls and results. Nothing of what was said is printed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--session", type=int, metavar="PK", help="only this session")
        parser.add_argument("--scope", help='only sessions of this scope, such as "user:1"')
        parser.add_argument(
            "--fix", action="store_true", help="repair what can be without inventing words"
        )
        parser.add_argument("--json", action="store_true", help="print lines of JSON")

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
        self._sum_up(found, fixed)
        left = found.total() - fixed.total()
        if left:
            raise CommandError(f"{counted(left, 'finding')} left unrepaired.")

    def _show(self, finding: services.Finding) -> None:
        if self.as_json:
            self.stdout.write(json.dumps(asdict(finding)))
            return
        mark = " (repaired)" if finding.is_fixed else " (--fix repairs it)"
        end = mark if finding.is_fixable else ""
        self.stdout.write(f"session {finding.session_pk}: {finding.sentence}{end}")

    def _sum_up(self, found: Counter[str], fixed: Counter[str]) -> None:
        if self.as_json:
            self.stdout.write(json.dumps({"found": found, "fixed": +fixed}))
            return
        for code, count in sorted(found.items()):
            self.stdout.write(f"{code}: {count:,} found, {fixed[code]:,} repaired")
        if not found:
            self.stdout.write("nothing found")
