"""The command that finds and repairs damage in the stored sessions."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from django.core.management import CommandError, CommandParser

from chatmemory import services
from chatmemory.errors import BadInput, NotFound
from chatmemory.management.counting import counted
from chatmemory.management.owners import scope_of
from chatmemory.management.reporting import ReportingCommand
from chatmemory.services.integrity.findings import Finding
from chatmemory.services.integrity.sessions import check_integrity

_ACTOR = services.Actor.server("chatmemory_check")


class Command(ReportingCommand):
    """Prints one line per finding, then the number of findings of each kind."""

    help = (
        "Find wrong tables, gaps, duplicates, wrong counters, orphans, overdue turns, unreadable "
        "rows and tool calls without results. The output contains no message content. The exit "
        "status is 1 if findings remain."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--session", type=int, metavar="PK", help="only this conversation")
        parser.add_argument("--scope", help='only conversations of this scope, such as "user:1"')
        parser.add_argument(
            "--fix", action="store_true", help="repair all findings whose repair invents no content"
        )

    def handle(
        self,
        *,
        session: int | None,
        scope: str | None,
        fix: bool,
        **options: object,
    ) -> None:
        found: Counter[str] = Counter()
        fixed: Counter[str] = Counter()
        repair_by = _ACTOR if fix else None
        try:
            for finding in check_integrity(
                session_pk=session,
                scope=scope_of(None, scope),
                repair_by=repair_by,
                progress=self.progress,
            ):
                self._show_finding(finding)
                found[finding.code] += 1
                fixed[finding.code] += finding.is_fixed
        except (BadInput, NotFound) as error:
            raise CommandError(str(error)) from error
        self._print_counts(found, fixed)
        left = found.total() - fixed.total()
        if left:
            raise CommandError(f"{counted(left, 'finding')} not repaired.")

    def _show_finding(self, finding: Finding) -> None:
        mark = " (repaired)" if finding.is_fixed else " (--fix repairs it)"
        end = mark if finding.is_fixable else ""
        place = "" if finding.session_pk is None else f"conversation {finding.session_pk}: "
        self.report(f"{place}{finding.sentence}{end}", **asdict(finding))

    def _print_counts(self, found: Counter[str], fixed: Counter[str]) -> None:
        lines = [
            f"{code}: {count:,} found, {fixed[code]:,} repaired"
            for code, count in sorted(found.items())
        ]
        self.report("\n".join(lines or ["nothing found"]), found=found, fixed=+fixed)
