"""Store a conversation of another product as a session, or what is new at its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count

from django.db.models import F
from django.db.models.functions import Greatest

from chatmemory import codec
from chatmemory.access.actors import owner_of, scope_for
from chatmemory.access.addresses import check_session_key
from chatmemory.codec import Row
from chatmemory.database.after_commit import announce_change
from chatmemory.database.faults import ignored_duplicate, write_connection
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.errors import Archived, BadInput, Busy, NotFound
from chatmemory.formats import Outcome, Target
from chatmemory.imports.conversations import Conversation, key_part, with_times
from chatmemory.imports.limits import MAX_VERSIONS
from chatmemory.models import AuditAction, Message, Session, database_now
from chatmemory.services.audit.entries import check_reason, record
from chatmemory.services.removal.hide import purge_expired
from chatmemory.services.titles import one_line
from chatmemory.services.transfers.imports import IN_PROGRESS, check_destination

# Note [Imported again]
#
# A session names the conversation in `origin`, and its last imported message in `origin_row`. Its
# rows 1 to n are the imported ones, whose `client_id` is made from the product's id of the message.
# A newer export is compared with them. What is new at its end is appended, if these rows are all
# of the session. If the session was continued here, or another branch was exported, the export
# becomes a further session: messages of two sides are never mixed in one. A redacted row is
# compared by its id, and a row that a vacuum deleted counts as equal, so removed content does not
# return. No session is made for a conversation that was purged here, as long as the purged session
# is stored.

DONE = {
    "extended": "with new messages",
    "second": "beside a session that differs",
    "skipped": "purged here",
}
"""Names of counts in the report."""

PAGE = 500
"""Rows that are compared at a time."""

MAX_CHUNK_CHARS = 4_000_000
MAX_CHUNK_ROWS = 1_000
"""Limits of one INSERT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A row to store, and when it was written."""

    row: Row
    id: str
    at: datetime


class Storing:
    """Stores the conversations of one file. Raises BadInput for a scope that can't be used."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.scope = scope_for(target.by, target.scope)
        check_reason(target.reason)
        check_destination(self.scope)
        self.origins = self._read_origins()
        """The primary keys of the imported sessions of the scope, also of purged ones."""

    def _read_origins(self) -> dict[str, list[int]]:
        # No index has the origin, so a query for each conversation would read all sessions.
        found: dict[str, list[int]] = {}
        sessions = Session.objects.of_scopes(self.scope).filter(origin__isnull=False)
        pairs = sessions.order_by("pk").values_list("pk", "origin")
        for pk, origin in durably(lambda: list(pairs), is_repeatable=True):
            found.setdefault(str(origin), []).append(pk)
        return found

    def store(self, conversation: Conversation, *, number: int, place: str) -> Outcome:
        """Store one conversation in one transaction. Raises BadInput, Archived, Conflict, Busy."""
        lines = _lines_of(conversation)
        known = self.origins.get(conversation.origin, ())
        if len(known) >= MAX_VERSIONS:
            message = f"This id has {MAX_VERSIONS} sessions, which differ."
            raise BadInput(message, code="too_many", limit=MAX_VERSIONS)
        if self.target.dry_run:
            kind, pk = _decide(known, lines)
            pk = pk or -1  # a second conversation with this id is not new
        else:
            kind, pk = _store(self.target, self.scope, conversation, lines, known)
        if kind in ("new", "second"):
            self.origins.setdefault(conversation.origin, []).append(pk)
        return Outcome(
            line=number,
            place=place,
            messages=0 if kind == "skipped" else len(lines),
            is_new=kind in ("new", "second"),
            is_skipped=kind == "skipped",
            more=_more(kind, conversation),
        )


def _more(kind: str, conversation: Conversation) -> dict[str, int]:
    """Return the counts for the report: what was done with a known session, what was not kept."""
    if kind in ("skipped", "equal"):
        return {DONE[kind]: 1} if kind in DONE else {}
    lost = {f"lost {name.replace('_', ' ')}": n for name, n in (+conversation.lost).items()}
    return ({DONE[kind]: 1} if kind in DONE else {}) | lost


def _lines_of(conversation: Conversation) -> list[_Line]:
    """Encode the messages. Raises BadInput."""
    entries = with_times(conversation.entries, conversation.created_at)
    now = entries[0].at or database_now(write_connection())
    lines = []
    for entry in entries:
        field = f"message {entry.id}"
        row = codec.encode(entry.message, field=field, model=entry.model)
        lines.append(_Line(row=row, id=entry.id, at=entry.at or now))
    return lines


def _decide(known: Sequence[int], lines: Sequence[_Line]) -> tuple[str, int]:
    """Return what an import does, and the session that has these messages or gets the new ones."""
    is_purged = is_any = False
    active = set(Session.objects.active().filter(pk__in=known).values_list("pk", flat=True))
    for pk in known:
        if pk not in active:
            is_purged = is_purged or Session.objects.filter(pk=pk).exists()
            continue
        is_any = True
        session = Session.objects.get(pk=pk)
        number = _imported_count(session, lines)
        if not _are_equal(session, lines[:number]):
            continue
        if number == len(lines):
            return "equal", pk
        is_whole = session.last_seq == number and session.running is None and not session.waiting
        if is_whole:
            return "extended", pk
    if is_purged:
        return "skipped", 0
    return ("second" if is_any else "new"), 0


def _imported_count(session: Session, lines: Sequence[_Line]) -> int:
    """Return how many of the messages the session has, if they are its messages."""
    for number, line in enumerate(lines, 1):
        if line.id == session.origin_row:
            return number
    return len(lines)


def _are_equal(session: Session, lines: Sequence[_Line]) -> bool:
    """Return whether the session begins with these messages, as far as its rows are stored."""
    if len(lines) > session.last_seq:
        return False
    columns = ("seq", "client_id", "role", "text", "redacted")
    rows = Message.stored.filter(session=session).order_by("seq").values_list(*columns)
    seen = 0
    for low in range(1, len(lines) + 1, PAGE):
        page = rows.filter(seq__gte=low, seq__lt=min(low + PAGE, len(lines) + 1))
        for seq, name, role, text, redacted in page:
            line = lines[seq - 1]
            is_same = (name, role) == (line.id, line.row.role)
            if not is_same or (not redacted and text != line.row.text):
                return False
            seen += 1
    return seen >= len(lines) - session.stored_from + 1


@retried(is_repeatable=True)
def _store(
    target: Target,
    scope: str,
    conversation: Conversation,
    lines: Sequence[_Line],
    known: Sequence[int],
) -> tuple[str, int]:
    """Store what is new of a conversation in one transaction. See Note [Imported again]."""
    with ignored_duplicate(), locked_transaction():
        for pk in known:
            with suppress(NotFound):  # deleted by a vacuum or an erasure
                lock_pk(pk)
        kind, pk = _decide(known, lines)
        if kind == "extended":
            _append(target, pk, lines)
        elif kind in ("new", "second"):
            pk = _create(target, scope, conversation, lines, known)
        return kind, pk
    # Another import has stored this conversation or this key meanwhile.
    raise Busy(IN_PROGRESS)


def _create(
    target: Target,
    scope: str,
    conversation: Conversation,
    lines: Sequence[_Line],
    known: Sequence[int],
) -> int:
    """Insert a session with its rows; return its primary key. Needs a transaction."""
    created_at = conversation.created_at or lines[0].at
    last = max(line.at for line in lines)
    session = Session(
        scope=scope,
        key=_free_key(target, scope, conversation, known),
        owner_id=owner_of(scope),
        title=one_line(conversation.title),
        last_seq=len(lines),
        tokens=sum(line.row.tokens for line in lines),
        created_at=created_at,
        last_message_at=last,
        last_active_day=last.date(),
        origin=conversation.origin,
        origin_row=lines[-1].id,
    )
    session.save(force_insert=True)
    _insert_rows(session, lines, first_seq=1)
    record(session, AuditAction.IMPORT, target.by, target.reason, messages=len(lines), turns=0)
    announce_change(session.pk)
    return session.pk


def _free_key(target: Target, scope: str, conversation: Conversation, known: Sequence[int]) -> str:
    """Return the key PREFIX:id, or with the first free number at its end.

    Raises BadInput, and Busy if another import stores this conversation.
    """
    base = key = _key_of(target, conversation)
    for number in count(2):
        purge_expired(scope, key)
        found = Session.objects.filter(scope=scope, key=key).values_list("pk", "origin").first()
        if found is None:
            break
        if found[1] == conversation.origin and found[0] not in known:
            raise Busy(IN_PROGRESS)
        key = f"{base}:{number}"
        check_session_key(key)
    return key


def _key_of(target: Target, conversation: Conversation) -> str:
    """Return the key of its first session. Raises BadInput."""
    if not conversation.key:
        prefix = target.prefix or conversation.product
        return codec.check_key(f"{prefix}:{key_part(conversation.id)}", field="id")
    key = f"{target.prefix}:{conversation.key}" if target.prefix else conversation.key
    check_session_key(key)
    return key


def _append(target: Target, pk: int, lines: Sequence[_Line]) -> None:
    """Insert the rows that the session does not have. Needs its lock. Raises Archived."""
    session = Session.objects.get(pk=pk)
    if session.archived_at is not None:
        raise Archived
    new = lines[session.last_seq :]
    last = max(line.at for line in new)
    _insert_rows(session, new, first_seq=session.last_seq + 1)
    before = session.last_message_at
    Session.objects.filter(pk=pk).update(
        last_seq=len(lines),
        tokens=F("tokens") + sum(line.row.tokens for line in new),
        last_message_at=last if before is None else max(before, last),
        last_active_day=Greatest(F("last_active_day"), last.date()),
        origin_row=lines[-1].id,
    )
    record(session, AuditAction.IMPORT, target.by, target.reason, messages=len(new), turns=0)
    announce_change(pk)


def _insert_rows(session: Session, lines: Sequence[_Line], *, first_seq: int) -> None:
    """Insert rows in chunks of a bounded size. Needs the lock."""
    chunk: list[Message] = []
    chars = 0
    for seq, line in enumerate(lines, first_seq):
        row = line.row
        chunk.append(
            Message(
                session=session,
                seq=seq,
                role=row.role,
                text=row.text,
                body=row.body,
                client_id=line.id,
                batch=1,
                status=row.status,
                error=row.error,
                model=row.model,
                tokens=row.tokens,
                created_at=line.at,
            )
        )
        chars += len(row.text) + len(row.body or "")
        if len(chunk) == MAX_CHUNK_ROWS or chars >= MAX_CHUNK_CHARS:
            Message.stored.bulk_create(chunk)
            chunk, chars = [], 0
    Message.stored.bulk_create(chunk)
