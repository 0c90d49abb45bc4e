"""Search messages: the index proposes rows, and each of them is read again."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

from django.db.models import OuterRef, Q, TextField
from django.db.models.functions import Substr

from chatmemory.access import rates
from chatmemory.access.actors import Actor, is_person
from chatmemory.access.addresses import MAX_SEQ, Address, check_length
from chatmemory.codec import check_value
from chatmemory.database.retries import durably, has_async_version, retried
from chatmemory.errors import BadInput, NotFound, RateLimited
from chatmemory.models import Message, MessageQuerySet, SessionQuerySet, is_current
from chatmemory.search.analysis import MAX_CHARS, Analyzer, Mode, Query
from chatmemory.search.conf import settings
from chatmemory.search.models import BLOCK_ROWS
from chatmemory.search.reading import MAX_ROWS, ROLES, Corpus, Position, read_corpus
from chatmemory.search.scoring import Scored, Why, matching, score
from chatmemory.search.snippets import snippet
from chatmemory.search.threads import search_threads
from chatmemory.search.values import Hit, SearchPage
from chatmemory.services.sessions import sessions_of

MAX_QUERY_CHARS: Final = 500
MAX_HITS: Final = 50
MAX_SECONDS: Final = 2.0
"""After this time a search reads no more messages; it returns what it has found."""

MIN_READ_SECONDS: Final = 0.5
"""How long ranked messages are read at least."""

MAX_CANDIDATES: Final = 500
"""Ranked messages that one search reads again."""

BATCH_CANDIDATES: Final = 200
"""Messages that one statement reads again, at most."""

Order = Literal["rank", "newest"]

ORDERS: Final = ("rank", "newest")
MODES: Final = ("words", "prefix", "phrase")

_CURSOR = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{1,16})\.([0-9a-f]{1,8})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which messages can be hits. They change no score."""

    role: str | None = None
    before: datetime | None = None
    after: datetime | None = None
    superseded: bool = False

    def conditions(self) -> Q:
        given: dict[str, object] = {"role__in": ROLES if self.role is None else [self.role]}
        if self.before is not None:
            given["created_at__lt"] = self.before
        if self.after is not None:
            given["created_at__gte"] = self.after
        shown = Q(**given, redacted=False, quarantined=False)
        if not self.superseded:
            shown &= is_current(OuterRef("session_id"), OuterRef("seq"), OuterRef("seq"))
        return shown


@has_async_version("asearch_messages")
def search_messages(
    *,
    by: Actor,
    query: str,
    scope: str | None = None,
    session_key: str | None = None,
    role: str | None = None,
    before: datetime | None = None,
    after: datetime | None = None,
    superseded: bool = False,
    order: Order = "rank",
    mode: Mode = "words",
    is_by_role: bool = False,
    limit: int = 20,
    cursor: str | None = None,
) -> SearchPage:
    """Find messages of a scope, or of one session, by their words.

    Finds each message from its commit on, and none that is removed, hidden, redacted or, without
    `superseded`, replaced by an edit. System messages are never found.

    `mode`: a hit of `words` has at least one of the words, also in another form if SEARCH_LANGUAGE
    has rules for it; of `prefix` one of the words, or a word that begins with the last one; of
    `phrase` all of them next to each other in this order. Upper and lower case are equal.
    `order`: by `rank`, the best first, or the `newest` first, then only messages with every word.
    `is_by_role`: messages of users count more, which suits questions of models.
    `before` (exclusive) and `after` (inclusive) are aware times of storage. `role` is `user`,
    `assistant` or `tool`.

    `query` has 1 to 500 characters, of which 32 words are used, `limit` is 1 to 50. One call ranks
    about 100,000 messages, the newest sessions first, or 32 MB of their index, and analyzes 2,000
    that have no index yet, within about two seconds. If there are more, the page is `partial`, and
    its `cursor` continues with the older ones. Each page is ranked for itself; a change between two
    calls, or a call without enough time, can repeat or omit a hit. It takes no lock and writes
    nothing. Searches of one person wait for each other, and those of the server for those in the
    same scope or session.

    Raises BadInput, NotFound, RateLimited, MemoryUnavailable, and TypeError for a scope that the
    actor cannot have.
    """
    parsed = check_query(query, mode)
    filters = check_filters(role=role, before=before, after=after, superseded=superseded)
    if order not in ORDERS:
        raise BadInput(f"order must be one of {', '.join(ORDERS)}.", field="order")
    if isinstance(limit, bool) or not 1 <= limit <= MAX_HITS:
        raise BadInput(f"limit must be 1 to {MAX_HITS}.", field="limit", limit=MAX_HITS)
    start, skip = _read_cursor(cursor)
    sessions = (
        sessions_of(by, scope)
        if session_key is None
        else Address(session_key, by, scope).sessions()
    )
    if is_person(by.owner):
        rates.check_count("searches", by, "SEARCHES_PER_MINUTE")
    # The server searches for many people, who do not wait for each other.
    with _turn_of(by.owner if is_person(by.owner) else f"{scope}:{session_key}"):
        search = Search(
            sessions=sessions,
            query=parsed,
            filters=filters,
            order=order,
            is_by_role=is_by_role,
            start=start,
            deadline=time.monotonic() + MAX_SECONDS,
        )
        page = search.page(limit=limit, skip=skip)
        if session_key is not None and not page.searched:
            require_session(sessions)
        return page


async def asearch_messages(**arguments: Any) -> SearchPage:
    # Not with `in_pool`: ranking holds the interpreter for longer than other calls, and sockets and
    # runs wait for the threads of the pool.
    return await search_threads().call(partial(search_messages, **arguments), lambda: None)


def search_sessions(
    *,
    sessions: SessionQuerySet,
    by: Actor,
    query: str,
    mode: Mode = "words",
    role: str | None = None,
    limit: int = 20,
    cursor: str | None = None,
) -> SearchPage:
    """Find messages of these sessions for an operator, as `search_messages` does; the best first.

    Raises BadInput, RateLimited, MemoryUnavailable.
    """
    parsed = check_query(query, mode)
    filters = check_filters(role=role, before=None, after=None)
    start, skip = _read_cursor(cursor)
    with _turn_of(by.owner):
        deadline = time.monotonic() + MAX_SECONDS
        search = Search(
            sessions=sessions, query=parsed, filters=filters, start=start, deadline=deadline
        )
        return search.page(limit=limit, skip=skip)


def analyzer() -> Analyzer:
    """Return the analyzer of SEARCH_LANGUAGE."""
    return Analyzer(settings.SEARCH_LANGUAGE)


def check_query(query: str, mode: Mode = "words") -> Query:
    """Return a query that has words. Raises BadInput; TypeError if it is not a text."""
    check_length("query", query, 1, MAX_QUERY_CHARS)
    check_value(query, "query")
    if mode not in MODES:
        raise BadInput(f"mode must be one of {', '.join(MODES)}.", field="mode")
    parsed = analyzer().parse(query, mode)
    if not parsed:
        raise BadInput("query has no words.", code="empty", field="query")
    return parsed


def check_filters(
    *,
    role: str | None,
    before: datetime | None,
    after: datetime | None,
    superseded: bool = False,
) -> Filters:
    """Return valid filters. Raises BadInput."""
    if role is not None and role not in ROLES:
        raise BadInput(f"role must be one of {', '.join(ROLES)}.", field="role")
    for field, moment in (("before", before), ("after", after)):
        if moment is None:
            continue
        if moment.utcoffset() is None:
            raise BadInput(f"{field} must have a time zone.", field=field)
        try:
            moment.astimezone(UTC)
        except OverflowError:
            raise BadInput(f"{field} is out of range.", field=field) from None
    return Filters(role=role, before=before, after=after, superseded=superseded)


@retried(is_repeatable=True)
def require_session(sessions: SessionQuerySet) -> None:
    """Raise NotFound if there is no session."""
    if not sessions.exists():
        raise NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search of the messages of sessions."""

    sessions: SessionQuerySet
    query: Query
    filters: Filters
    order: Order = "rank"
    is_by_role: bool = False
    """Whether messages of users count more, for models. People search all roles equally."""
    needs_match: bool = True
    """Whether a hit has a word of the query; otherwise its neighbors suffice."""
    min_relevance: float = 0.0
    """Nothing is found if the best message is below this share, such as MIN_RELEVANCE."""
    start: Position | None = None
    highest: Mapping[int, int] | None = None
    """The highest seq that is searched, of some sessions, by their primary key."""
    deadline: float

    def page(self, *, limit: int, skip: int = 0) -> SearchPage:
        """Return up to `limit` hits behind the first `skip` ranked messages.

        Raises MemoryUnavailable.
        """
        corpus, ranked = self._rank(skip + MAX_CANDIDATES)
        until = max(self.deadline, time.monotonic() + MIN_READ_SECONDS)
        hits: list[Hit] = []
        done = skip
        size = limit
        # The first candidate is always examined, so that each call gets further.
        while done < len(ranked) and len(hits) < limit and _has_time(until, done > skip):
            some = ranked[done : done + size]
            rows = durably(partial(self._read, some), is_repeatable=True)
            for candidate in some:
                if not _has_time(until, done > skip):
                    break  # a long text can take a tenth of a second
                done += 1
                row = rows.get((candidate.session, candidate.seq))
                hit = None if row is None else self._hit(candidate, row)
                if hit is not None:
                    hits.append(hit)
                if len(hits) == limit:
                    break
            size = BATCH_CANDIDATES
        is_more = done < len(ranked) or len(ranked) == skip + MAX_CANDIDATES
        cursor = _write_cursor(corpus.start, done) if is_more else _write_cursor(corpus.rest, 0)
        return SearchPage(
            hits=hits,
            partial=corpus.rest is not None,
            cursor=cursor,
            searched=len({part.session for part in corpus.parts}),
        )

    def best(self, limit: int) -> list[Scored]:
        """Return the best `limit` messages, which `rows` reads again. Raises MemoryUnavailable."""
        return self._rank(limit)[1]

    def rows(self, candidates: Sequence[Scored]) -> MessageQuerySet:
        """Select those of the messages that may be hits."""
        seqs: dict[int, list[int]] = defaultdict(list)
        for candidate in candidates:
            seqs[candidate.session].append(candidate.seq)
        wanted = Q()
        for session_pk, some in seqs.items():
            wanted |= Q(session=session_pk, seq__in=some)
        # With the sessions again: one may have been removed since its blocks were read.
        return Message.objects.filter(wanted, self.filters.conditions(), session__in=self.sessions)

    def _rank(self, limit: int) -> tuple[Corpus, list[Scored]]:
        """Read the messages; return them, and the best `limit` of them."""
        read = partial(
            read_corpus,
            self.sessions,
            analyzer(),
            deadline=self.deadline,
            start=self.start,
            highest=self.highest,
            has_words=bool(self.query.prefix),
            superseded=self.filters.superseded,
        )
        corpus = durably(read, is_repeatable=True)
        return corpus, self._ranked(corpus, limit)

    def _ranked(self, corpus: Corpus, limit: int) -> list[Scored]:
        parts, query = corpus.parts, self.query
        if self.order == "newest":
            return [Scored(*found, 0.0, Why) for found in matching(parts, query)[:limit]]
        return score(
            parts,
            query,
            is_by_role=self.is_by_role,
            limit=limit,
            needs_match=self.needs_match,
            needs_all=query.mode == "phrase",
            min_relevance=self.min_relevance,
        )

    def _read(self, candidates: Sequence[Scored]) -> dict[tuple[int, int], tuple[Any, ...]]:
        """Read those of the messages that may be hits, by session and seq."""
        start = Substr("text", 1, MAX_CHARS, output_field=TextField())
        columns = ("session_id", "seq", "session__key", "session__scope", "role", "created_at")
        found = self.rows(candidates).values_list(*columns, start)
        return {tuple(row[:2]): row[2:] for row in found}

    def _hit(self, candidate: Scored, row: tuple[Any, ...]) -> Hit | None:
        """Return a hit, if the message has what was searched."""
        key, scope, role, created_at, text = row
        found = analyzer().matches(self.query, text)
        if not found and self.needs_match:
            return None  # a word with the hash of another
        if (
            self.order == "newest"
            and self.query.prefix
            and not analyzer().matches(self.query.of_prefix(), text)
        ):
            return None  # "run" is proposed for the prefix "runn", and does not begin so
        cut, ranges = snippet(text, found)
        return Hit(
            session_pk=candidate.session,
            session_key=key,
            scope=scope,
            seq=candidate.seq,
            role=role,
            created_at=created_at,
            snippet=cut,
            ranges=tuple(ranges),
            score=candidate.score,
            why=candidate.why,
            text=text,
        )


def _has_time(until: float, has_begun: bool) -> bool:
    return not has_begun or time.monotonic() <= until


_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
_locks_lock = threading.Lock()


@contextmanager
def _turn_of(owner: str) -> Iterator[None]:
    """Wait until no other search of this owner runs in this process. Raises RateLimited."""
    with _locks_lock:
        lock = _locks.setdefault(owner, threading.Lock())
    if not lock.acquire(timeout=MAX_SECONDS):
        raise RateLimited("Another search of yours is running.", retry_after=MAX_SECONDS)
    try:
        yield
    finally:
        lock.release()


def _write_cursor(position: Position | None, skip: int) -> str | None:
    if position is None:
        return None
    return f"{position.session_pk:x}.{max(position.seq, 0):x}.{skip:x}"


def _read_cursor(cursor: str | None) -> tuple[Position | None, int]:
    """Return the position and the number of ranked messages to skip. Raises BadInput."""
    if cursor is None:
        return None, 0
    match = _CURSOR.fullmatch(cursor)
    pk, seq, skip = (int(number, 16) for number in match.groups()) if match else (0, 0, 0)
    if match is None or max(pk, seq) > MAX_SEQ or skip > MAX_ROWS + BLOCK_ROWS:
        raise BadInput("cursor is none of this search.", field="cursor")
    return Position(pk, seq), skip
