"""Versions of a user's message: an edit or a regenerated reply is a turn that supersedes rows."""

from __future__ import annotations

from dataclasses import dataclass

from chatmemory.access.actors import Actor
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, Conflict, HistoryCleared, NotFound
from chatmemory.models import (
    Message,
    MessageQuerySet,
    Session,
    SupersededRange,
    Turn,
    superseded,
)
from chatmemory.services.derived.removal import hide_rows
from chatmemory.services.sessions import get_session

MAX_REPLACED_ROWS = 200
"""Maximum number of rows that a turn can supersede."""

# Note [Superseded ranges]
# A replacement stores its own user row and, in its Turn row, the range of seqs that it supersedes:
# from `replaces_from`, the replaced user row, up to `replaces_to`, the row before its own. No
# message row is changed, so the cost does not depend on the length of the range, and the superseded
# rows stay readable. The window and the transcript omit them by these ranges.
#
# - While a replacement waits, `replaces_to` is the newest user row that its sender knew. Its claim
#   checks again whether the range can be superseded, and then fixes the end.
# - Two ranges of edits are disjoint, or the later one contains the earlier: a superseded row cannot
#   be replaced again, but a later edit may start at an earlier message. Ordered by their ends, they
#   are in the order of their turns.
# - `Session.superseded_to` is the highest end. Sessions without edits or withdrawals need no query.
# - Rows can also be withdrawn, without a turn that replaces them: Note [Withdrawn ranges]. Readers
#   get the ranges of both kinds from `superseded`, and exclude them with `is_current`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a user's message, with the rows that answer it."""

    turn: str | None
    """The client_id of its turn; None if no Turn row exists."""
    seq: int
    """The seq of the user row."""
    to_seq: int
    """The last seq of the version, which follows on `seq` without gaps."""
    is_current: bool
    """The version is not superseded, so the model receives it."""


@retried(is_repeatable=True)
def list_versions(
    *, session_key: str, seq: int, by: Actor, scope: str | None = None
) -> list[Version]:
    """Return all versions of a user's message above the floor, the oldest first.

    `seq` is the user row of any of them. A message without edits is its only version. Raises
    BadInput, MemoryUnavailable, and NotFound also for a row that starts no turn.
    """
    session = get_session(session_key=session_key, by=by, scope=scope)
    ranges = superseded(session.first_seq, session=session)
    edits = [(found.low, found.user_seq) for found in ranges if found.user_seq is not None]
    older_of = {newer: older for older, newer in edits}
    newer_of = dict(edits)
    oldest = seq
    while (older := older_of.get(oldest, 0)) >= session.first_seq:
        oldest = older
    seqs = [oldest]
    while seqs[-1] in newer_of:
        seqs.append(newer_of[seqs[-1]])
    client_ids = dict(_turn_starts(session).filter(seq__in=seqs).values_list("seq", "client_id"))
    if seq not in client_ids:
        raise NotFound("No user message has this seq.")
    return [_version(session, ranges, at, client_ids.get(at)) for at in seqs]


def _version(
    session: Session, ranges: list[SupersededRange], seq: int, client_id: str | None
) -> Version:
    # Several ranges can contain it: the first one belongs to the turn that replaced it.
    to_seq = next((found.high for found in ranges if seq in found), None)
    return Version(
        turn=client_id,
        seq=seq,
        to_seq=session.last_seq if to_seq is None else to_seq,
        is_current=to_seq is None,
    )


def _turn_starts(session: Session) -> MessageQuerySet:
    """Return the visible user rows that start a turn."""
    return Message.stored.filter(session=session, seq__gte=session.first_seq).turn_starts()


def check_newest(session: Session, seq: int) -> None:
    """Raise Conflict if this is not the newest user row, 0 for none. Needs the session's lock."""
    rows = Message.stored.filter(
        session=session,
        role=Message.Role.USER,
        # Rows before `seq` cannot matter, so a long session is not scanned.
        seq__gte=max(session.first_seq, min(seq, session.last_seq)),
    )
    newest = rows.order_by("-seq").values_list("seq", flat=True).first() or 0
    if newest != seq:
        raise Conflict(f"{seq} is not the newest user message (expect_seq).")


def check_replaceable(session: Session, seq: int, newest: int) -> None:
    """Check that a turn may supersede the rows from this seq on. Needs the session's lock.

    `newest` is the newest user row that the sender knew.
    Raises HistoryCleared, Conflict, BadInput.
    """
    if seq < session.first_seq:
        raise HistoryCleared
    check_newest(session, newest)
    if session.last_seq - seq >= MAX_REPLACED_ROWS:
        message = f"Only the last {MAX_REPLACED_ROWS} messages can be replaced."
        raise BadInput(message, field="replaces", limit=MAX_REPLACED_ROWS)
    if not _turn_starts(session).filter(seq=seq).exists():
        raise BadInput(
            "replaces must be the seq of a user message that starts a turn.", field="replaces"
        )
    found = superseded(seq, session=session) if seq <= session.superseded_to else []
    if any(seq in one for one in found):
        raise Conflict("This message is replaced or withdrawn; replace a newer one.")


def supersede(session_pk: int, turn_pk: int, from_seq: int, to_seq: int) -> None:
    """Store the range that a turn supersedes. Needs the session's lock."""
    # Note [Superseded ranges]: the ends only grow, so the newest is the highest.
    turns = Turn.objects.filter(session=session_pk, pk=turn_pk)
    turns.update(replaces_from=from_seq, replaces_to=to_seq)
    Session.objects.filter(pk=session_pk).update(superseded_to=to_seq)
    hide_rows(session_pk, from_seq, to_seq)
