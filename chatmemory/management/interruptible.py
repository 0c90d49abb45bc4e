"""Commands that end without a traceback at Ctrl-C and when a pipe is closed."""

from __future__ import annotations

import os
import signal
import sys

from django.core.management import BaseCommand

INTERRUPTED = 128 + signal.SIGINT
"""Interrupted by Ctrl-C."""
PIPE_CLOSED = 128 + 13
"""The reader closed the pipe: SIGPIPE, which Windows does not have."""


class InterruptibleCommand(BaseCommand):
    """A command that ends quietly if its reader, such as `head`, closes the pipe, or at Ctrl-C."""

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            super().run_from_argv(argv)
            sys.stdout.flush()
        except KeyboardInterrupt:
            sys.stderr.write("\nInterrupted.\n")
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # Python flushes stdout again at exit; on the closed pipe that would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(PIPE_CLOSED)
