"""Text from a file or from standard input, since other users see the arguments of a process."""

from __future__ import annotations

import sys
from getpass import getpass
from pathlib import Path

from django.core.management import CommandError

from chatmemory.management.exits import UsageError

MAX_BYTES = 100_000


def read_text(path: str, option: str, *, prompt: str = "") -> str:
    """Return the text of a file, or of standard input for `-`, without the last line end.

    With a `prompt`, a terminal is asked for one line, which it does not show.
    Raises CommandError, UsageError (no UTF-8, too long).
    """
    if path == "-" and prompt and sys.stdin.isatty():
        return getpass(prompt)
    try:
        stored = _read_bytes(path)
    except OSError as error:
        raise CommandError(f"{path} can't be read: {error.strerror}.") from error
    if len(stored) > MAX_BYTES:
        raise UsageError(f"{option}: the text has more than {MAX_BYTES:,} bytes.")
    try:
        text = stored.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{option}: the text is not UTF-8.") from error
    return text.removesuffix("\n").removesuffix("\r")


def _read_bytes(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with Path(path).open("rb") as file:
        return file.read(MAX_BYTES + 1)
