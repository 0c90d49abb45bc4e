"""Values that reads return; they cannot be saved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from chatmemory import codec
from chatmemory.codec import MAX_STEP_CHARS, Steps


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as read from the database."""

    # Positional, since a page has many: names take three times as long.

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
    feedback: int | None
    created_at: datetime
    turn_client_id: str | None
    """The public name of the message's turn: the client_id of its user row."""

    @property
    def identity(self) -> tuple[int, str, str | None, datetime]:
        """The columns that `row_digest_of` hashes to identify this row."""
        return self.seq, self.role, self.client_id, self.created_at

    def plain(self) -> dict[str, object]:
        """Decode the plain message, marked `quarantined` if undecodable."""
        return codec.decode(self.role, self.text, self.body)

    @property
    def is_unreadable(self) -> bool:
        """Whether it cannot be decoded, marked as quarantined or not. Its text can be shown."""
        return self.quarantined or "quarantined" in self.plain()

    def steps(self, *, max_chars: int = MAX_STEP_CHARS) -> Steps:
        """Return its tool calls, or the call that it answers, and its reasoning.

        A redacted or unreadable message has no calls and no reasoning.
        """
        return self._steps(self.plain(), max_chars)

    def _steps(self, plain: Mapping[str, object], max_chars: int) -> Steps:
        steps = codec.steps_of(plain, max_chars=max_chars)
        return Steps(result=steps.result) if self.redacted or self.quarantined else steps

    def public(self, *, max_chars: int = MAX_STEP_CHARS) -> dict[str, object]:
        """Return the fields that readers of the session see, in frames and over REST."""
        plain = self.plain()
        content = plain.get("content")
        asks = codec.Question.of(plain)
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
            "feedback": self.feedback,
            "created_at": self.created_at.isoformat(),
            **self._steps(plain, max_chars).public(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The fields of a session that pages and sockets show besides its rows.

    `HEAD_COLUMNS` is derived from the fields: a new one is read without further changes.
    """

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
    """The revision of the last change of a row; 0 without one."""
    archived_at: datetime | None
    running: str | None
    turn_status: str | None
    turn_since: datetime | None
    waiting: int

    def as_session(self) -> dict[str, object]:
        """Return the filter for related rows of this session in this epoch.

        A restored database may assign the primary key to another session.
        """
        return {
            "session": self.pk,
            "session__scope": self.scope,
            "session__key": self.key,
            "session__epoch": self.epoch,
        }

    def public(self) -> dict[str, object]:
        """Return the fields that the owner sees."""
        since = self.turn_since and self.turn_since.isoformat()
        running = {"turn": self.running, "status": self.turn_status, "since": since}
        return {
            "key": self.key,
            "title": self.title,
            "epoch": self.epoch,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "revision": self.revision,
            "archived": self.archived_at is not None,
            "running": running if self.running else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Rows in order of seq, with the head read in the same statement."""

    head: Head
    rows: list[StoredMessage]
    row_digest: str = ""
    """The digest of the row at `after`; empty without one."""


STORED_COLUMNS = tuple(
    name for name in StoredMessage.__dataclass_fields__ if name != "turn_client_id"
)
_SEQ, _CLIENT_ID, _TURN = map(STORED_COLUMNS.index, ("seq", "client_id", "turn"))
DIGESTED_COLUMNS = ("seq", "role", "client_id", "created_at")
"""The columns of a row that `row_digest_of` hashes."""
_OF_TURN = {"turn_status": "now__status", "turn_since": "now__started_at"}
HEAD_COLUMNS = {name: _OF_TURN.get(name, name) for name in Head.__dataclass_fields__}
"""The column of each field of `Head`, in a query of `SessionQuerySet.with_turn`."""
SESSION_COLUMNS = tuple(name for name in HEAD_COLUMNS if name not in (*_OF_TURN, "pk"))
"""The fields of `Head` that are columns of the session with the same name."""

ContentRow = tuple[str, str, str | None, int, int, int | None]
"""The role, text, body and seq of a message, the epoch of its session, and the session's primary
key if the session has superseded rows."""


def row_digest_of(seq: int, role: str, client_id: str | None, created_at: datetime) -> str:
    """Hash the columns that neither redaction nor repair changes, to identify a row."""
    identity = f"{seq} {role} {client_id or ''} {created_at.astimezone(UTC).isoformat()}"
    return hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()


def head_of(values: Mapping[str, Any]) -> Head:
    """Build a head from a row of the columns in `HEAD_COLUMNS`."""
    return Head(**{name: values[column] for name, column in HEAD_COLUMNS.items()})


def page_columns(*, has_digest: bool) -> tuple[str, ...]:
    """The columns of `SessionQuerySet.page_rows`, and for the digest if `has_digest`."""
    return (
        *(f"row__{name}" for name in STORED_COLUMNS),
        "earlier_client_id",
        *HEAD_COLUMNS.values(),
        *(f"at__{name}" for name in DIGESTED_COLUMNS if has_digest),
    )


def page_of(rows: Sequence[Sequence[Any]], *, has_digest: bool) -> Page | None:
    """Build a page from the rows of `SessionQuerySet.page_rows`; None without a row."""
    if not rows:
        return None
    columns = dict(zip(page_columns(has_digest=has_digest), rows[0], strict=True))
    digested: list[Any] = [columns.get(f"at__{name}") for name in DIGESTED_COLUMNS]
    return Page(
        head=head_of(columns),
        rows=[] if columns["row__seq"] is None else _messages_of(rows),
        row_digest="" if digested[0] is None else row_digest_of(*digested),
    )


def _messages_of(rows: Iterable[Sequence[Any]]) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    client_ids: dict[int | None, str | None] = {}
    for row in rows:
        stored = row[: len(STORED_COLUMNS)]
        client_ids[stored[_SEQ]] = stored[_CLIENT_ID]
        # The user row of its turn is in this page, or precedes it, or does not exist.
        turn_client_id = row[len(STORED_COLUMNS)] or client_ids.get(stored[_TURN])
        messages.append(StoredMessage(*(*stored, turn_client_id)))
    return messages
