"""Reads what a search ranks: the blocks of sessions, and the terms of messages without a block."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from django.db.models import Case, F, Q, QuerySet, TextField, When
from django.db.models.functions import Length, Substr

from chatmemory import codec
from chatmemory.database.statements import CompiledSelect, Parameter, padded
from chatmemory.models import Message, SessionQuerySet, Turn, WithdrawnRange
from chatmemory.search.analysis import MAX_CHARS, Analyzer
from chatmemory.search.blocks import Block, BlockRow, CorruptBlock, pack
from chatmemory.search.models import BLOCK_ROWS, SearchBlock, first_of, number_of
from chatmemory.search.scoring import Part

MAX_ROWS = 100_000
"""Messages that one search ranks, rounded up to whole blocks."""

MAX_SESSIONS = 2_000
"""Sessions that one search ranks."""

MAX_UNINDEXED = 2_000
"""Messages without a block that one search analyzes."""

MAX_BYTES = 32 * 1024 * 1024
"""Bytes of blocks that one search reads, plus a block: about 100,000 messages of 400 characters."""

BATCH_SESSIONS = 500
"""Sessions whose blocks one statement finds."""

BATCH_BYTES = 4 * 1024 * 1024
BATCH_BLOCKS = 200
"""Bytes of blocks, plus a block, and blocks that one statement reads."""

BATCH_PIECES = 20
BATCH_ROWS = 256
"""Pieces, and messages in them, that one statement reads. The time is checked before the next."""

MAX_NAMED_BODY = 4_000
"""Characters of a body that is read for the name in it."""

ROLES = (Message.Role.USER, Message.Role.ASSISTANT, Message.Role.TOOL)
"""The roles that are indexed: a system message is no part of the conversation."""


class Position(NamedTuple):
    """A message in the order of reading: the newest session first, in it the highest seq."""

    session_pk: int
    seq: int


class Piece(NamedTuple):
    """Consecutive messages of a session that have one block number."""

    session_pk: int
    low: int
    high: int

    @property
    def rows(self) -> int:
        return self.high - self.low + 1

    @property
    def base(self) -> int:
        """The lowest seq of the block number."""
        return first_of(number_of(self.low))


@dataclass(slots=True)
class _Span:
    """The messages of a session that are read."""

    session_pk: int
    low: int
    high: int
    is_whole: bool
    """Whether it has all messages of the session that are not hidden."""
    superseded_to: int
    """No later message is superseded."""
    superseded: list[tuple[int, int]] = field(default_factory=list)
    """The superseded ranges that are not to be found, in order and without overlaps."""

    def has(self, seq: int) -> bool:
        if not self.low <= seq <= self.high:
            return False
        at = bisect_right(self.superseded, seq, key=itemgetter(0))
        return not at or self.superseded[at - 1][1] < seq


@dataclass(frozen=True, slots=True)
class Corpus:
    """What a search ranks."""

    parts: list[Part]
    """Grouped by session; sessions and messages from old to new."""
    start: Position | None
    """The first message that was read; None without messages."""
    rest: Position | None
    """The first message that was not read; None if all were."""


def read_corpus(
    sessions: SessionQuerySet,
    analyzer: Analyzer,
    *,
    deadline: float,
    start: Position | None = None,
    highest: Mapping[int, int] | None = None,
    has_words: bool = False,
    superseded: bool = False,
) -> Corpus:
    """Read as many messages as one search ranks, from `start` on.

    `highest`: the highest seq that is read, of some sessions. After `deadline`, by the monotonic
    clock, no more blocks are read, and no more messages analyzed; some always are. `has_words`:
    also the words of the blocks, which a prefix needs. `superseded`: also superseded messages.
    """
    spans, rest = _read_spans(sessions, start, highest or {})
    if not superseded:
        _add_superseded(spans)
    found = _find_blocks(spans, analyzer)
    stored, unread = _read_blocks(found, has_words=has_words, deadline=deadline)
    if unread is not None:
        _cut(spans, unread)
        rest = unread
    parts: dict[Position, Part] = {}
    blocks: dict[int, list[Piece]] = defaultdict(list)
    for piece, block in stored:
        blocks[piece.session_pk].append(piece)
        hidden = _hidden_rows(spans[piece.session_pk], piece, block)
        position = Position(piece.session_pk, piece.low)
        parts[position] = Part(piece.session_pk, piece.base, block, hidden)
    pieces, unread = _newest(_unindexed(spans.values(), blocks))
    late = _analyze(pieces, spans, analyzer, parts, deadline=deadline)
    rest = late or unread or rest
    return Corpus(
        parts=[parts[at] for at in sorted(parts) if rest is None or at > rest],
        start=next((Position(span.session_pk, span.high) for span in spans.values()), None),
        rest=rest,
    )


def indexable(**of: Any) -> QuerySet[Any, Any]:
    """Select what the index needs of messages, in order: columns for `block_rows`.

    Also of hidden messages, but not of redacted and unreadable ones.
    """
    return (
        Message.stored.filter(**of, role__in=ROLES, redacted=False, quarantined=False)
        .annotate(start=Substr("text", 1, MAX_CHARS, output_field=TextField()))
        .annotate(body_chars=Length("body"))
        .annotate(short_body=Case(When(body_chars__lte=MAX_NAMED_BODY, then=F("body"))))
        .order_by("session_id", "seq")
        .values_list("session_id", "seq", "role", "start", "short_body", "created_at")
    )


def block_rows(rows: Iterable[tuple[Any, ...]], analyzer: Analyzer) -> list[BlockRow]:
    """Return the rows of a block from columns of `indexable`."""
    return [
        BlockRow(
            place=(seq - 1) % BLOCK_ROWS,
            role=role,
            name=_name_in(role, body),
            created_at=created_at,
            terms=analyzer.terms(text),
        )
        for _, seq, role, text, body, created_at in rows
    ]


def pieces_of(session_pk: int, low: int, high: int) -> Iterator[Piece]:
    """Yield the messages `low` to `high` as pieces, newest first."""
    while low <= high:
        first = max(low, first_of(number_of(high)))
        yield Piece(session_pk, first, high)
        high = first - 1


def _name_in(role: str, body: str | None) -> str | None:
    if body is None or '"name":' not in body:
        return None
    name = codec.decode(role, "", body).get("name")
    return name if isinstance(name, str) else None


def _read_spans(
    sessions: SessionQuerySet, start: Position | None, highest: Mapping[int, int]
) -> tuple[dict[int, _Span], Position | None]:
    """Read which messages the sessions have; return what is to be read, and the first of the rest.

    Sessions from new to old.
    """
    found = sessions.order_by("-pk").values_list("pk", "first_seq", "last_seq", "superseded_to")
    if start is not None:
        found = found.filter(pk__lte=start.session_pk)
    spans: dict[int, _Span] = {}
    left = MAX_ROWS
    for index, (pk, first, last, superseded_to) in enumerate(found[: MAX_SESSIONS + 1]):
        high = min(last, highest.get(pk, last))
        if start is not None and pk == start.session_pk:
            high = min(high, start.seq)
        if index == MAX_SESSIONS or left <= 0:
            return spans, Position(pk, high)
        if high < first:
            continue
        low = first
        if high - first >= left:
            low = max(first, first_of(number_of(high - left + 1)))
        spans[pk] = _Span(pk, low, high, (low, high) == (first, last), superseded_to)
        left -= high - low + 1
        if low > first:
            return spans, Position(pk, low - 1)
    return spans, None


def _add_superseded(spans: dict[int, _Span]) -> None:
    """Read the superseded ranges of the spans."""
    pks = [pk for pk, span in spans.items() if span.superseded_to >= span.low]
    for some in _batched(pks, BATCH_SESSIONS):
        of_session = {"session__in": some}
        turns = Turn.objects.filter(**of_session).superseding(1)
        withdrawn = WithdrawnRange.objects.filter(**of_session)
        for ranges in (
            turns.values_list("session_id", "replaces_from", "replaces_to"),
            withdrawn.values_list("session_id", "low", "high"),
        ):
            for pk, low, high in ranges:
                spans[pk].superseded.append((low or 0, high or 0))
        for pk in some:
            spans[pk].superseded = _merged(spans[pk].superseded)


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, without overlaps: an edit of an edit supersedes rows again."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


class _Found(NamedTuple):
    """A block that is not read yet."""

    pk: int
    last: Position
    size: int
    """Bytes."""


def _find_blocks(spans: Mapping[int, _Span], analyzer: Analyzer) -> list[_Found]:
    """Return the blocks of the spans, newest first."""
    of_analyzer = SearchBlock.objects.filter(analyzer=analyzer.name)
    whole = [pk for pk, span in spans.items() if span.is_whole]
    selected = [of_analyzer.filter(session__in=some) for some in _batched(whole, BATCH_SESSIONS)]
    selected += [
        of_analyzer.filter(session=span.session_pk, low__lte=span.high, high__gte=span.low)
        for span in spans.values()
        if not span.is_whole
    ]
    columns = ("pk", "session_id", "high", Length("postings") + Length("words"))
    found = [
        _Found(pk, Position(session_pk, high), size)
        for blocks in selected
        for pk, session_pk, high, size in blocks.values_list(*columns)
        if high >= spans[session_pk].low  # others have only hidden messages
    ]
    return sorted(found, key=attrgetter("last"), reverse=True)


def _block_rows(count: int, has_words: bool) -> QuerySet[Any, Any]:
    pks = [Parameter(f"pk_{index}") for index in range(count)]
    columns = ["pk", "session_id", "low", "high", "postings", *(["words"] if has_words else [])]
    return SearchBlock.objects.filter(pk__in=pks).values(*columns)


# As text PostgreSQL would send each byte as two digits.
_BLOCKS = CompiledSelect(_block_rows, is_binary=True)


def _read_blocks(
    found: Sequence[_Found], *, has_words: bool, deadline: float
) -> tuple[list[tuple[Piece, Block]], Position | None]:
    """Return blocks, some at least, from new to old; and the last message of the first other one.

    Without those that are damaged, or were deleted meanwhile: their messages are analyzed.
    """
    read: list[tuple[Piece, Block]] = []
    size = 0
    for some in _block_batches(found):
        if size and (size >= MAX_BYTES or time.monotonic() > deadline):
            return read, some[0].last
        size += sum(block.size for block in some)
        pks = padded([block.pk for block in some])
        values = {f"pk_{index}": pk for index, pk in enumerate(pks)}
        rows = {pk: row for pk, *row in _BLOCKS.tuples(len(pks), has_words, **values)}
        for block in some:
            with suppress(KeyError, CorruptBlock):
                session_pk, low, high, *packed = rows[block.pk]
                read.append((Piece(session_pk, low, high), Block(*packed)))
    return read, None


def _block_batches(found: Iterable[_Found]) -> Iterator[list[_Found]]:
    """Yield the blocks that one statement reads."""
    batch: list[_Found] = []
    size = 0
    for block in found:
        batch.append(block)
        size += block.size
        if size >= BATCH_BYTES or len(batch) == BATCH_BLOCKS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _cut(spans: dict[int, _Span], rest: Position) -> None:
    """Leave out the messages from `rest` on."""
    for pk in [pk for pk in spans if pk < rest.session_pk]:
        del spans[pk]
    last = spans[rest.session_pk]
    last.low = rest.seq + 1
    if last.low > last.high:
        del spans[rest.session_pk]


def _hidden_rows(span: _Span, piece: Piece, block: Block) -> frozenset[int]:
    """Return the indexes of the rows of a block that are not to be found."""
    if span.low <= piece.low and piece.high <= span.high and not span.superseded:
        return frozenset()
    return frozenset(
        index for index, place in enumerate(block.places) if not span.has(piece.base + place)
    )


def _unindexed(spans: Iterable[_Span], blocks: dict[int, list[Piece]]) -> Iterator[Piece]:
    """Yield the messages without a block, newest first."""
    for span in spans:
        high = span.high
        for block in blocks[span.session_pk]:
            yield from pieces_of(span.session_pk, block.high + 1, high)
            high = min(high, block.low - 1)
        yield from pieces_of(span.session_pk, span.low, high)


def _newest(pieces: Iterable[Piece]) -> tuple[list[Piece], Position | None]:
    """Return as many pieces as one search analyzes, at least one; and the first other message."""
    found: list[Piece] = []
    left = MAX_UNINDEXED
    for piece in pieces:
        if found and piece.rows > left:
            return found, Position(piece.session_pk, piece.high)
        found.append(piece)
        left -= piece.rows
    return found, None


def _analyze(
    pieces: Sequence[Piece],
    spans: dict[int, _Span],
    analyzer: Analyzer,
    parts: dict[Position, Part],
    *,
    deadline: float,
) -> Position | None:
    """Add the parts of pieces without a block; return the first message that was too late."""
    has_begun = False
    for some in _batches(pieces):
        rows = _rows_of(some)
        for piece in some:
            span = spans[piece.session_pk]
            found: list[BlockRow] = []
            late = None
            for row in reversed(rows[piece.session_pk]):
                seq = row[1]
                if not piece.low <= seq <= piece.high or not span.has(seq):
                    continue
                # For each message: one with 32,000 characters can take a tenth of a second.
                if has_begun and time.monotonic() > deadline:
                    late = Position(piece.session_pk, seq)
                    break
                found += block_rows([row], analyzer)
                has_begun = True
            packed = pack(found[::-1])
            block = Block(packed.postings, packed.words)
            position = Position(piece.session_pk, late.seq + 1 if late else piece.low)
            parts[position] = Part(piece.session_pk, piece.base, block)
            if late:
                return late
    return None


def _rows_of(pieces: Sequence[Piece]) -> dict[int, list[tuple[Any, ...]]]:
    """Read the messages of pieces, by session."""
    ranges = Q()
    for piece in pieces:
        ranges |= Q(session=piece.session_pk, seq__gte=piece.low, seq__lte=piece.high)
    found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in indexable().filter(ranges):
        found[row[0]].append(row)
    return found


def _batches(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces that one statement reads."""
    batch: list[Piece] = []
    rows = 0
    for piece in pieces:
        if batch and (len(batch) == BATCH_PIECES or rows + piece.rows > BATCH_ROWS):
            yield batch
            batch, rows = [], 0
        batch.append(piece)
        rows += piece.rows
    if batch:
        yield batch


def _batched(pks: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (pks[at : at + size] for at in range(0, len(pks), size))
