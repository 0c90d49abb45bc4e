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
        except BrokenPipeError:
            # Python flushes stdout again at exit; on the closed pipe that would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(PIPE_CLOSED)
        except BaseException as error:
            # The rollback of a transaction that Ctrl-C interrupts may raise an error of its own.
            cause: BaseException | None = error
            while cause and not isinstance(cause, KeyboardInterrupt):
                cause = cause.__context__
            if cause is None:
                raise
            sys.stderr.write("\nInterrupted.\n")
            sys.exit(INTERRUPTED)
