"""The command that runs turns and jobs, and serves no sockets."""

from __future__ import annotations

import signal
from queue import SimpleQueue

from django.core.management import CommandError

from chatmemory.database.pool import threads
from chatmemory.live.drain import drain
from chatmemory.live.preload import preload
from chatmemory.live.runner import runner
from chatmemory.management.interruptible import InterruptibleCommand
from chatmemory.startup import are_threads_patched


class Command(InterruptibleCommand):
    """Is notified over the channel layer; without one, finds waiting turns at each sweep."""

    help = (
        "Run waiting turns and jobs, without serving sockets, until SIGTERM or Ctrl-C. Then "
        "running turns have DRAIN seconds to end; a second signal ends the process immediately. "
        "Several can run at the same time."
    )

    def handle(self, **options: object) -> None:
        if problem := threads().problem:
            raise CommandError(problem)
        if are_threads_patched():
            raise CommandError("gevent or eventlet has patched threads. Start it without them.")
        # Not an Event: the code that the signal interrupts may hold its lock.
        signals: SimpleQueue[int] = SimpleQueue()
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda signum, _: signals.put(signum))
            drain.watch(signum)
        preload()
        runner.enable()
        self.stdout.write(f"Running turns as {runner.name}.")
        self.stdout.flush()  # output to a file is buffered
        signals.get()
