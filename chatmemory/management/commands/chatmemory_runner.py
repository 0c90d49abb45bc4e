"""A process that only runs turns."""

from __future__ import annotations

import signal
from queue import SimpleQueue

from django.core.management import CommandError

from chatmemory.conf import settings
from chatmemory.drain import drain
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.runner import runner


class Command(InterruptibleCommand):
    """Hears of work over the channel layer, or else finds it at each sweep."""

    help = (
        "Run the turns that wait, without serving sockets, until SIGTERM or Ctrl-C. Its turns then "
        "have DRAIN seconds to end; a second signal ends it at once. Start as many as you like."
    )

    def handle(self, **options: object) -> None:
        if not settings.DB_THREADS:
            raise CommandError("CHATMEMORY['DB_THREADS'] is 0, which is for tests.")
        # No event: its lock may be held by the very code that the signal interrupts.
        over: SimpleQueue[int] = SimpleQueue()
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda signum, _: over.put(signum))
            drain.watch(signum)
        runner.enable()
        self.stdout.write(f"Running turns as {runner.name}.")
        self.stdout.flush()  # a log is no terminal, and would hold it back
        over.get()
