"""What reads return: plain values, not rows to save."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from chatmemory import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as it was read."""

    seq: int
    role: str
    text: str
    body: str | None
    client_id: str | None
    turn: int | None
    step: int | None
    status: str
    error: str
    model: str
    tokens: int
    revision: int
    redacted: bool
    quarantined: bool
    created_at: datetime
    turn_client_id: str | None
    """The public name of the message's turn: the client_id of its user row."""

    @property
    def mark(self) -> str:
        """A short hash that identifies this row."""
        return mark_of(self.seq, self.role, self.client_id, self.created_at)

    def plain(self) -> dict[str, object]:
        """The message as it was handed in; a placeholder if it can't be decoded."""
        return codec.decode(self.role, self.text, self.body)

    @property
    def is_unreadable(self) -> bool:
        """Whether it can't be decoded, marked as such or not; its text can be shown."""
        return self.quarantined or "quarantined" in self.plain()

    def public(self) -> dict[str, object]:
        """What whoever may read the session is shown of it, in frames and over REST alike."""
        plain = self.plain()
        content = plain.get("content")
        asks = codec.Asks.of(plain)
        return {
            "seq": self.seq,
            "revision": self.revision,
            "turn": self.turn_client_id,
            "step": self.step,
            "client_id": self.client_id,
            "role": self.role,
            "status": self.status,
            "text": self.text,
            "content": None if isinstance(content, str) else content,
            "cut": "cut" in plain,
            "error": self.error,
            "asks": asks.public() if asks else None,
            "usage": plain.get("usage"),
            "model": self.model,
            "redacted": self.redacted,
            "quarantined": self.quarantined or "quarantined" in plain,
            "created_at": self.created_at.isoformat(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a page or a socket shows of a session besides its rows."""

    pk: int
    scope: str
    key: str
    title: str
    epoch: int
    first_seq: int
    last_seq: int
    superseded_to: int
    revision: int
    rows_revision: int
    """That of the last change of a row; 0 if there was none."""
    archived: bool
    running: str | None
    turn_status: str | None
    turn_since: datetime | None
    waiting: int

    def as_session(self) -> dict[str, object]:
        """Conditions for a related row: its session is this one, in this epoch.

        A restored database may assign the primary key to another session.
        """
        return {
            "session": self.pk,
            "session__scope": self.scope,
            "session__key": self.key,
            "session__epoch": self.epoch,
        }

    def public(self) -> dict[str, object]:
        """What the owner is shown of it besides the rows."""
        since = self.turn_since and self.turn_since.isoformat()
        running = {"turn": self.running, "status": self.turn_status, "since": since}
        return {
            "key": self.key,
            "title": self.title,
            "epoch": self.epoch,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "revision": self.revision,
            "archived": self.archived,
            "running": running if self.running else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Rows in order of seq, with the head as it was in the same moment."""

    head: Head
    rows: list[StoredMessage]
    mark: str = ""
    """Of the row at `after`; empty if there is none."""


STORED_COLUMNS = tuple(
    name for name in StoredMessage.__dataclass_fields__ if name != "turn_client_id"
)
MARKED_COLUMNS = ("seq", "role", "client_id", "created_at")
"""Of a row, the columns that `mark_of` is given."""
HEAD_COLUMNS = (
    "pk",
    "scope",
    "key",
    "title",
    "epoch",
    "first_seq",
    "last_seq",
    "superseded_to",
    "revision",
    "rows_revision",
    "archived_at",
    "running",
    "waiting",
    "now__status",
    "now__started_at",
)


def mark_of(seq: int, role: str, client_id: str | None, created_at: datetime) -> str:
    """A short hash of what no redaction or repair of a row changes."""
    about = f"{seq} {role} {client_id or ''} {created_at.astimezone(UTC).isoformat()}"
    return hashlib.blake2b(about.encode(), digest_size=8).hexdigest()


def head_of(values: Mapping[str, Any]) -> Head:
    """The head in a row of `HEAD_COLUMNS`."""
    return Head(
        pk=values["pk"],
        scope=values["scope"],
        key=values["key"],
        title=values["title"],
        epoch=values["epoch"],
        first_seq=values["first_seq"],
        last_seq=values["last_seq"],
        superseded_to=values["superseded_to"],
        revision=values["revision"],
        rows_revision=values["rows_revision"],
        archived=values["archived_at"] is not None,
        running=values["running"],
        turn_status=values["now__status"],
        turn_since=values["now__started_at"],
        waiting=values["waiting"],
    )


def stored_of(values: Mapping[str, Any], prefix: str = "") -> StoredMessage:
    """The message in a row of `STORED_COLUMNS`, each under `prefix`, and `turn_client_id`."""
    columns = {name: values[prefix + name] for name in STORED_COLUMNS}
    return StoredMessage(**columns, turn_client_id=values["turn_client_id"])
