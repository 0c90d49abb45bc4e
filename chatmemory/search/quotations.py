"""Messages as a model reads them: quotations with their role and date."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from chatmemory import codec

_HIDDEN: Final = re.compile(f"[{codec.HIDDEN}]")
_LINE: Final = re.compile(r"^", re.MULTILINE)
_LINE_ENDS: Final = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


CUT: Final = " … [cut]"


def quotation(
    role: str, created_at: datetime, text: str, *, place: str = "", max_chars: int | None = None
) -> str:
    """Return a message behind a line that states its place, role and time."""
    marked = quoted(text)
    if max_chars is not None and len(marked) > max_chars:
        marked = marked[: max_chars - len(CUT)] + CUT
    return f"{place}{role}, {created_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC:\n{marked}"


def quoted(text: str) -> str:
    """Mark each line, so that no text can end its quotation; remove what can hide instructions."""
    return _LINE.sub("> ", _LINE_ENDS.sub("\n", _HIDDEN.sub("", text)))
