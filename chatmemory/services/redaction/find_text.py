"""Find a text, such as a leaked key, in everything that is stored of sessions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from django.db.models import Exists, F, Model, OuterRef, Q, QuerySet, Sum

from chatmemory.access.addresses import check_length
from chatmemory.codec import check_value
from chatmemory.database.batches import BATCH_SESSIONS, Progress, batches
from chatmemory.database.retries import durably, retried
from chatmemory.errors import BadInput
from chatmemory.models import (
    AuditAction,
    AuditEntry,
    Message,
    Session,
    SessionNote,
    SessionQuerySet,
    SupersededRange,
    Turn,
    TurnQuerySet,
    superseded,
)
from chatmemory.services.redaction.matching import (
    occurrence_in,
    occurrence_in_message,
    occurrence_in_turn,
    occurrence_in_value,
    reason_of,
)

MAX_FIND_CHARS = 10_000
SEARCHED_ROWS = 10_000
"""Messages that one statement searches."""

READ_ROWS = 100
"""Messages that are in memory at a time."""

MANUAL = "manual"
"""The obstacle of what no redaction changes."""

REDACTED = "redacted"
"""The state of a message without content, and of a turn without text."""

T = TypeVar("T", bound=Model)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundText:
    """Where a text is stored. It does not contain the text."""

    session_pk: int
    scope: str
    """The scope before the purge, if the session was purged."""
    session_key: str
    field: str
    """`message`, `turn` (no message contains the text), `feedback`, `title`, `instructions`,
    `metadata` or `note`."""
    state: str
    """`shown`, `replaced` (by an edit), `withdrawn`, `hidden` (by a trim or clear), `purged`, or
    for a turn `waiting` or `running`. `redacted`: only what a redaction keeps contains the text."""
    obstacle: str
    """Why a redaction does not delete it now: `held`, `busy` (the turn runs), `erased` (an erasure
    was interrupted), `manual` (neither a message nor a turn, or the name or id of a tool call).
    Otherwise empty."""
    is_replying: bool
    """Whether a turn runs in the session: its reply may repeat the text."""
    seq: int | None = None
    """The seq of the message, or of the user's message of the turn."""
    role: str = ""
    turn: str | None = None
    """The client_id of the turn, for `redact_turn`."""
    note: int | None = None
    """The primary key of the note, for `delete_note`."""


def find_text(
    *, sessions: SessionQuerySet, text: str, progress: Progress | None = None
) -> Iterator[FoundText]:
    """Yield where a text is stored in these sessions.

    In upper or lower case; on SQLite this is so for A to Z only. Searches trimmed, replaced and
    purged messages too, and what no message contains: waiting messages, partial replies, reasons of
    feedback, titles, instructions, metadata and notes. What is stored during the search may be
    missed. No statement searches more than 10,000 messages, and the memory does not depend on their
    number. `progress` is called with the number of messages that were searched, and with their
    total. For the database's operators: the scope of the caller is not checked. Raises BadInput,
    MemoryUnavailable.
    """
    check_find_text(text)
    return _search(sessions, text, progress)


def check_find_text(text: str) -> None:
    """Raise BadInput if this text cannot be searched, and TypeError if it is not a text."""
    check_length("text", text, 1, MAX_FIND_CHARS)
    check_value(text, "text")
    if not text.strip():
        raise BadInput("text is blank.", code="empty", field="text")


def _search(sessions: SessionQuerySet, text: str, progress: Progress | None) -> Iterator[FoundText]:
    total = _count_rows(sessions) if progress else 0
    done = 0
    for pks in batches(sessions, BATCH_SESSIONS):
        for part in _search_ranges(pks):
            if progress:
                progress(done, total)
            yield from _found(_finds(part, text))
            done += part.rows
    if progress:
        progress(done, done)  # messages may have been added or deleted since the count


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRange:
    """What one statement searches: several sessions, or a range of the messages of a long one."""

    session_pks: Sequence[int]
    rows: int
    low: int | None = None
    """The lowest seq; None for all from the beginning."""
    high: int | None = None
    """The highest seq; None for all up to the end."""

    @property
    def of_sessions(self) -> Q:
        return Q(session__in=self.session_pks)

    @property
    def of_turns(self) -> Q:
        """Match the turns of this part by their user row; the first part has those without."""
        seqs = self.seqs("user_seq")
        if self.low is not None or self.high is None:
            return seqs  # an empty condition is lost in a disjunction
        return seqs | Q(user_seq__isnull=True)

    def seqs(self, column: str) -> Q:
        """Match the messages of this part by their seq."""
        low = Q() if self.low is None else Q(**{f"{column}__gte": self.low})
        return low if self.high is None else low & Q(**{f"{column}__lte": self.high})


@retried(is_repeatable=True)
def _count_rows(sessions: SessionQuerySet) -> int:
    rows = Sum(F("last_seq") - F("stored_from") + 1, default=0)
    counted: int = sessions.order_by().aggregate(rows=rows)["rows"]
    return counted


def _search_ranges(session_pks: list[int]) -> Iterator[SearchRange]:
    """Divide these sessions into parts of up to SEARCHED_ROWS messages."""
    pks: list[int] = []
    rows = 0
    for pk, low, high in durably(partial(_bounds, session_pks), is_repeatable=True):
        count = high - low + 1
        if pks and rows + count > SEARCHED_ROWS:
            yield SearchRange(session_pks=pks, rows=rows)
            pks, rows = [], 0
        if count > SEARCHED_ROWS:
            yield from _ranges(pk, low, high)
        else:
            pks.append(pk)
            rows += count
    if pks:
        yield SearchRange(session_pks=pks, rows=rows)


def _bounds(session_pks: list[int]) -> list[tuple[int, int, int]]:
    found = Session.objects.filter(pk__in=session_pks).order_by("pk")
    return list(found.values_list("pk", "stored_from", "last_seq"))


def _ranges(session_pk: int, first: int, last: int) -> Iterator[SearchRange]:
    for low in range(first, last + 1, SEARCHED_ROWS):
        high = low + SEARCHED_ROWS - 1
        yield SearchRange(
            session_pks=[session_pk],
            rows=min(high, last) - low + 1,
            low=None if low == first else low,
            high=high if high < last else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Find:
    """What `_found` adds the facts of the session to."""

    session_pk: int
    field: str
    state: str = ""
    obstacle: str = ""
    seq: int | None = None
    role: str = ""
    turn: str | None = None
    note: int | None = None


def _finds(part: SearchRange, text: str) -> Iterator[_Find]:
    messages = Message.stored.filter(part.of_sessions, part.seqs("seq"))
    for message in _read_in_order(messages.containing(text), "session_id", "seq"):
        if occurrence_in_message(message, text):
            yield _find_in_message(message)
    for turn in turns_containing(Turn.objects.filter(part.of_sessions, part.of_turns), text):
        yield from _finds_in_turn(turn, text)
    if part.low is None:
        yield from other_finds(part.session_pks, text)


def turns_containing(turns: TurnQuerySet, text: str) -> Iterator[Turn]:
    """Yield the turns with a text in their waiting message, partial text or feedback, by age."""
    for turn in _read_in_order(turns.containing(text), "pk"):
        if occurrence_in_turn(turn, text) or occurrence_in(reason_of(turn), text):
            yield turn


def _find_in_message(message: Message) -> _Find:
    return _Find(
        session_pk=message.session_id,
        field="message",
        # A redaction keeps the names and ids of tool calls.
        state=REDACTED if message.redacted else "",
        seq=message.seq,
        role=message.role,
    )


def _finds_in_turn(turn: Turn, text: str) -> Iterator[_Find]:
    if occurrence_in_turn(turn, text):
        yield _find_in_turn(turn, "turn")
    if occurrence_in(reason_of(turn), text):
        yield _find_in_turn(turn, "feedback")


def _find_in_turn(turn: Turn, field: str) -> _Find:
    is_active = turn.status in Turn.ACTIVE_STATUSES
    has_text = turn.asked or turn.partial or reason_of(turn)
    return _Find(
        session_pk=turn.session_id,
        field=field,
        state=turn.status if is_active else "" if has_text else REDACTED,
        seq=turn.user_seq,
        turn=turn.client_id,
    )


@retried(is_repeatable=True)
def locate(*, session_pk: int, seq: int | None = None, turn: str | None = None) -> FoundText | None:
    """Return a message or a turn as `find_text` does; None if it is not stored.

    Raises MemoryUnavailable.
    """
    finds: list[_Find] = []
    if seq is not None:
        messages = Message.stored.filter(session=session_pk, seq=seq)
        finds = [_find_in_message(message) for message in messages]
    elif turn is not None:
        turns = Turn.objects.with_reason().filter(session=session_pk, client_id=turn)
        finds = [_find_in_turn(found, "turn") for found in turns]
    return next(_found(finds), None)


def other_finds(session_pks: Collection[int], text: str) -> Iterator[_Find]:
    """Yield what no redaction changes: title, instructions, metadata and notes with a text."""
    sessions = Session.objects.filter(pk__in=session_pks)
    named = sessions.filter(Q(title__icontains=text) | Q(instructions__icontains=text))
    for session in _read_in_order(named, "pk"):
        for name in ("title", "instructions"):
            if occurrence_in(getattr(session, name), text):
                yield _Find(session_pk=session.pk, field=name, obstacle=MANUAL)
    # In Python, since databases write the JSON of this column differently.
    for session in _read_in_order(sessions.exclude(metadata={}).only("metadata"), "pk"):
        if occurrence_in_value(session.metadata, text):
            yield _Find(session_pk=session.pk, field="metadata", obstacle=MANUAL)
    notes = SessionNote.objects.filter(session__in=session_pks, text__icontains=text)
    for note in _read_in_order(notes, "pk"):
        if occurrence_in(note.text, text):
            yield _Find(session_pk=note.session_id, field="note", obstacle=MANUAL, note=note.pk)


def _read_in_order(rows: QuerySet[T], *order: str) -> Iterator[T]:
    """Yield rows in this order of one or two columns, in statements of up to READ_ROWS."""
    after = Q()
    while True:
        found = list(durably(partial(_next_chunk, rows.filter(after), order), is_repeatable=True))
        yield from found
        if len(found) < READ_ROWS:
            return
        after = _after_row(found[-1], order)


def _next_chunk(rows: QuerySet[T], order: Sequence[str]) -> list[T]:
    return list(rows.order_by(*order)[:READ_ROWS])


def _after_row(row: Any, order: Sequence[str]) -> Q:
    first, *rest = order
    value = getattr(row, first)
    later = Q(**{f"{first}__gt": value})
    return later | (Q(**{first: value}) & _after_row(row, rest)) if rest else later


def _found(finds: Iterable[_Find]) -> Iterator[FoundText]:
    """Yield these finds with the facts of their sessions, one session after the other."""
    by_session: defaultdict[int, list[_Find]] = defaultdict(list)
    for find in finds:
        by_session[find.session_pk].append(find)
    pks = sorted(by_session)
    for first in range(0, len(pks), READ_ROWS):
        for session in _read_sessions(pks[first : first + READ_ROWS]):
            replaced = superseded(1, session=session) if session.superseded_to else []
            for find in by_session[session.pk]:
                yield _with_facts(find, session, replaced)


@retried(is_repeatable=True)
def _read_sessions(pks: list[int]) -> list[Session]:
    erasures = AuditEntry.objects.filter(session_pk=OuterRef("pk"), action=AuditAction.ERASE)
    found = Session.objects.filter(pk__in=pks).defer("instructions", "metadata")
    return list(found.annotate(is_erased=Exists(erasures)).order_by("pk"))


def _with_facts(find: _Find, session: Session, replaced: list[SupersededRange]) -> FoundText:
    return FoundText(
        session_pk=session.pk,
        scope=session.removed_scope or session.scope,
        session_key=session.key,
        field=find.field,
        state=find.state or _message_state(find.seq, session, replaced),
        obstacle=find.obstacle or _obstacle(find, session),
        is_replying=session.running is not None,
        seq=find.seq,
        role=find.role,
        turn=find.turn,
        note=find.note,
    )


def _message_state(seq: int | None, session: Session, replaced: list[SupersededRange]) -> str:
    if session.removed_at is not None:
        return "purged"
    if seq is not None and seq < session.first_seq:
        return "hidden"
    for found in reversed(replaced):  # the last one that contains the message is the widest
        if seq in found:
            return "withdrawn" if found.user_seq is None else "replaced"
    return "shown"


def _obstacle(find: _Find, session: Session) -> str:
    facts: Any = session
    if find.state == REDACTED:
        return MANUAL
    if session.removed_at is not None and facts.is_erased:
        return "erased"
    if session.held_at is not None:
        return "held"
    is_running = find.state == Turn.Status.RUNNING
    if is_running or (find.turn is not None and find.turn == session.running):
        return "busy"
    return ""
