"""Cursors: the position of a client in a session."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass

from chatmemory.codec import MAX_SAFE_INTEGER

_CURSOR = re.compile(
    r"([0-9]{1,16})\." * 5 + r"([0-9a-f]{16}|)(?:\.([0-9]{1,16}))?(?:~(-?[0-9]{1,18}))?"
)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A client's position in a session; opaque to it.

    The epoch identifies the session. The primary key only distinguishes a session that got
    another epoch from a new session under the same key.
    """

    session_pk: int
    epoch: int
    seq: int
    revision: int
    first_seq: int
    row_digest: str = ""
    """Identifies the row `seq`, which a restored database may have replaced; empty for no row."""
    changed: int | None = None
    """The last sent row of all rows that changed with `revision`; None for all of them."""
    stored_at: int | None = None
    """When the row `seq` was stored, in microseconds since 1970; None if that is unknown."""

    def __str__(self) -> str:
        *position, stored_at = astuple(self)
        text = ".".join(str(part) for part in position if part is not None)
        return text if stored_at is None else f"{text}~{stored_at}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """Parse a cursor; None if the text is not one."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            return None
        pk, epoch, seq, revision, first_seq = numbers = [int(part) for part in found.groups()[:5]]
        changed, stored_at = (None if part is None else int(part) for part in found.groups()[6:])
        if max(*numbers, changed or 0) > MAX_SAFE_INTEGER:
            # The server assigns no such number, and adding to it overflows in a database.
            return None
        return cls(pk, epoch, seq, revision, first_seq, found[6], changed, stored_at)
