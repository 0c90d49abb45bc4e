"""Changes of a session that a reader can apply to an older head without the database."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from chatmemory.models.values import Head, Page, StoredMessage

# Note [Rows from memory]
#
# A process shows rows that it has just committed to its own sockets without reading them back. That
# is exact, because the revision counts every change that a reader sees, except new rows, which the
# seq counts, and the start of a turn. So a write that was its whole transaction leads from the head
# with one revision and seq to exactly one other head, which the write returns.
# - A reader applies a change only to the head that directly precedes it, in the same epoch and at
#   the same address. Otherwise it reads, also if a trim, a clear, a redaction or a write of another
#   process came between.
# - A reader skips a change that its head contains: changes may arrive late, and after a read.
# - A change that cannot be kept may be dropped if a read follows.
# - A restored database may have the same revision and seq with other rows. So the next read, which
#   the sweep causes, also checks the digests of the rows before each change that was applied.


class Change(Protocol):
    """A committed change of one session. See Note [Rows from memory]."""

    def is_in(self, head: Head) -> bool:
        """Whether the head contains the change."""

    def page_after(self, head: Head) -> Page | None:
        """Return the head after the change, and its rows; None if it does not directly follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """Stored rows, and the head after their write."""

    head: Head
    """Its turn's time is known only for a turn that has just begun."""
    rows: list[StoredMessage]
    revision_before: int

    def is_in(self, head: Head) -> bool:
        return (
            _is_same(self.head, head)
            and self.head.last_seq <= head.last_seq
            and self.head.revision <= head.revision
        )

    def page_after(self, head: Head) -> Page | None:
        before = (self.revision_before, self.rows[0].seq - 1)
        if not _is_same(self.head, head) or (head.revision, head.last_seq) != before:
            return None
        new = self.head
        if new.running is not None and self.revision_before == new.revision:
            # A row of a running turn, which does not change the turn.
            if head.turn_since is None:
                return None
            new = replace(new, turn_status=head.turn_status, turn_since=head.turn_since)
        return Page(head=new, rows=self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTurn:
    """The start of a turn's run, which changes no column of its session."""

    session_pk: int
    epoch: int
    client_id: str
    started_at: datetime

    def is_in(self, head: Head) -> bool:
        return self._is_running_in(head) and head.turn_since == self.started_at

    def page_after(self, head: Head) -> Page | None:
        if not self._is_running_in(head):
            return None
        return Page(head=replace(head, turn_since=self.started_at), rows=[])

    def _is_running_in(self, head: Head) -> bool:
        names = (self.session_pk, self.epoch, self.client_id)
        return names == (head.pk, head.epoch, head.running)


def _is_same(one: Head, other: Head) -> bool:
    return (one.pk, one.epoch, one.scope, one.key) == (
        other.pk,
        other.epoch,
        other.scope,
        other.key,
    )
