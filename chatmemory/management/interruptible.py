"""Commands that end without a traceback at Ctrl-C and at a closed pipe."""

from __future__ import annotations

import os
import signal
import sys

from django.core.management import BaseCommand

INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 128 + 13
"""The exit codes of programs that SIGINT and SIGPIPE end; Windows has no SIGPIPE."""


class InterruptibleCommand(BaseCommand):
    """A command whose output may be cut off, as by `| head`, and which Ctrl-C may end."""

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            super().run_from_argv(argv)
            sys.stdout.flush()
        except KeyboardInterrupt:
            sys.stderr.write("\nInterrupted.\n")
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # Python flushes its output once more at the end, which would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(PIPE_CLOSED)
