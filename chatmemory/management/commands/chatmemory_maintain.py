"""The command that does the maintenance that is due."""

from __future__ import annotations

import logging
import time
from io import StringIO
from pathlib import Path

from django.core.management import CommandError, CommandParser, call_command

from chatmemory.database.retries import durably
from chatmemory.errors import MemoryUnavailable
from chatmemory.logs import log_error
from chatmemory.management.reporting import ReportingCommand
from chatmemory.services.maintenance.due import read_maintenance
from chatmemory.services.maintenance.lease import only_here
from chatmemory.services.maintenance.tasks import schedules

logger = logging.getLogger(__name__)

VERIFY = "chatmemory_audit_verify"


class Command(ReportingCommand):
    """Calls the commands of the registered tasks, one after the other."""

    help = (
        "Do the maintenance that is due: expire, vacuum, verify and seal the audit, check the "
        "integrity, and what optional apps add. Run this once a night, or more often; one line "
        "replaces those of the single commands. If several hosts run it simultaneously, one does "
        "the work. A command that fails does not stop the others; the exit status is 1 then."
    )
    is_long = False

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="only print which commands are due"
        )
        parser.add_argument(
            "--head-file",
            metavar="FILE",
            help="verify the audit each time, against the head in this file: the option of "
            "chatmemory_audit_verify",
        )

    def handle(self, *, dry_run: bool, head_file: str | None, **options: object) -> None:
        self.options: dict[str, dict[str, object]] = {}
        if head_file:
            self.options[VERIFY] = {"head_file": Path(head_file)}
        commands = list(dict.fromkeys(schedule.command for schedule in schedules()))
        try:
            if dry_run:
                for name in commands:
                    self._show(name, "due" if self._is_due(name) else "not_due")
                return
            failed = []
            with only_here() as is_here:
                for name in commands:
                    if not is_here():
                        self.report("Another process does the maintenance now.", state="elsewhere")
                        break
                    # Whether it is due is read for each: one command may do the task of another.
                    if not self._run(name):
                        failed.append(name)
        except MemoryUnavailable as error:
            raise CommandError(f"{error} Run this again to continue.") from error
        if failed:
            raise CommandError(f"Failed: {', '.join(failed)}. Run this again to continue.")

    def _run(self, name: str) -> bool:
        """Call a command if it is due; return False if it fails."""
        output, began_at, problem = StringIO(), time.monotonic(), ""
        try:
            if not self._is_due(name):
                self._show(name, "not_due")
                return True
            call_command(name, stdout=output, **self.options.get(name, {}))
        except (CommandError, MemoryUnavailable) as error:
            problem = str(error)
        except Exception as error:  # the next command may work
            log_error(logger, "%s failed", name, error=error)
            problem = f"{type(error).__name__}; the log has the details."
        seconds = round(time.monotonic() - began_at, 1)
        text = f"{output.getvalue().strip()}\n{problem}".strip()
        self._show(name, "failed" if problem else "done", seconds=seconds, output=text)
        return not problem

    def _is_due(self, name: str) -> bool:
        tasks = durably(read_maintenance, is_repeatable=True).tasks
        is_due = any(task.is_due for task in tasks if task.schedule.command == name)
        return is_due or name in self.options

    def _show(self, name: str, state: str, *, output: str = "", **values: object) -> None:
        words = state.replace("_", " ")
        text = f"{name}: {words}" + "".join(f"\n  {line}" for line in output.splitlines())
        self.report(text, command=name, state=state, output=output, **values)
