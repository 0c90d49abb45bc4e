"""Ends the turns that dead processes left behind."""

from __future__ import annotations

from django.core.management import CommandError

from chatmemory import services
from chatmemory.errors import MemoryUnavailable
from chatmemory.management.counting import counted
from chatmemory.management.interruptible import InterruptibleCommand


class Command(InterruptibleCommand):
    """Every process with sockets does the same by itself."""

    help = (
        "End the turns whose lease has ended: as interrupted with the text that was kept, or, if "
        "they had not begun, back into the queue. Every process that runs turns does so by itself; "
        "this is for when none does."
    )

    def handle(self, **options: object) -> None:
        try:
            recovered = services.end_all_overdue()
        except MemoryUnavailable as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{counted(recovered.interrupted, 'turn')} ended, {recovered.given_back} given back, "
            f"{recovered.cancelled} cancelled"
        )
        if recovered.failed:
            raise CommandError(
                f"The turns of {counted(recovered.failed, 'session')} could not be ended; run it "
                "again, and if that is in vain, chatmemory_check."
            )
