"""The command that ends the turns of dead processes."""

from __future__ import annotations

from django.core.management import CommandError

from chatmemory.errors import MemoryUnavailable
from chatmemory.management.counting import counted
from chatmemory.management.reporting import ReportingCommand
from chatmemory.services.turns import recovery


class Command(ReportingCommand):
    """Needed only if no process serves sockets or runs turns; these recover turns themselves."""

    is_long = False
    help = (
        "Recover the turns whose lease has expired. A turn that had started ends as interrupted, "
        "with its partial text; any other turn returns to the queue. Processes that run turns do "
        "this themselves: use this command if none is running."
    )

    def handle(self, **options: object) -> None:
        try:
            recovered = recovery.recover_all_overdue_turns()
        except MemoryUnavailable as error:
            raise CommandError(str(error)) from error
        self.report(
            f"{counted(recovered.interrupted, 'turn')} interrupted, "
            f"{recovered.requeued} returned to the queue, {recovered.cancelled} cancelled",
            interrupted=recovered.interrupted,
            requeued=recovered.requeued,
            cancelled=recovered.cancelled,
            failed=recovered.failed,
        )
        if recovered.failed:
            conversations = counted(recovered.failed, "conversation")
            raise CommandError(
                f"The turns of {conversations} could not be ended. Run this again; if it fails "
                "again, run chatmemory_check --fix."
            )
