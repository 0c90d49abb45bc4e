"""Ranks the rows of search blocks for a query.

The weights were fitted on half of two corpora; docs/reasons/search-bench.md has the figures.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache, partial
from heapq import nlargest
from itertools import compress, pairwise
from operator import sub
from typing import Final, NamedTuple

from chatmemory.search.analysis import Query, folded_words
from chatmemory.search.blocks import Block, term_hash

K1: Final = 1.2
B: Final = 0.75
"""The parameters of BM25."""
ROLE_WEIGHT: Final = 0.2
"""Of a row that no user wrote, if roles count: of its own score, and again of the sum."""
WINDOW: Final = 2
"""Rows before and after a row that are scored with it as one text."""
WINDOW_WEIGHT: Final = 0.5
BEFORE: Final = 6
"""Rows before a row whose scores support it."""
BEFORE_WEIGHT: Final = 0.25
BEFORE_DECAY: Final = 0.8
NEXT_WEIGHT: Final = 0.3
"""Of the next row's unweighted score, since an answer supports its question."""
MONTH_BONUS: Final = 4.0
NAME_BONUS: Final = 2.0
GAP_MINUTES: Final = 120
"""Rows this far apart are no neighbors."""
MAX_SPREAD: Final = 2_000
"""Matching rows, the best ones, that support their neighbors."""

MIN_RELEVANCE: Final = 0.32
"""A threshold for recall: the best score of a query, as a share of the sum of its terms' rarities.

The highest that cost at most 1 point of R@10 in the fitted halves of LoCoMo and BEAM. It is low: a
question about a missing detail has the words of its subject, and scores as others do.
"""

_USER, _OTHER, _NO_ROW = 1, 0, 2

_NO_ROWS: Final = bytes([_NO_ROW]) * 8
"""Keys without rows at a gap: more than any neighbor's distance."""

_REACH: Final = bytes([1]) * (WINDOW + BEFORE + 1)
_MINUTES_PER_DAY: Final = 24 * 60


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a session: a block, and which of its rows do not exist for the search."""

    session: int
    low: int
    """The seq of the block's place 0."""
    block: Block
    hidden: frozenset[int] = frozenset()
    """Indexes of rows that count nowhere: not in frequencies, lengths and neighbors."""


@dataclass(frozen=True, slots=True)
class Why:
    """The parts of a score, before the weight of the role."""

    own: float = 0.0
    """The row's own terms, with the weight of the role."""
    window: float = 0.0
    """The terms in the rows around it."""
    before: float = 0.0
    """The scores of the rows before it."""
    next: float = 0.0
    """The score of the row after it."""
    month: float = 0.0
    """The query names the row's month."""
    name: float = 0.0
    """The query names the row's participant."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A row with its rank's score."""

    session: int
    seq: int
    score: float
    explain: Callable[[], Why] = field(compare=False, repr=False)
    """Computes `why`: most rows that are ranked are never shown."""

    @property
    def why(self) -> Why:
        return self.explain()


def score(
    parts: Sequence[Part],
    query: Query,
    *,
    is_by_role: bool,
    limit: int | None = None,
    needs_match: bool = False,
    needs_all: bool = False,
    min_relevance: float = 0.0,
) -> list[Scored]:
    """Return the rows that match or have neighbors that match, best first, then newest first.

    `parts` are grouped by session, sessions and rows from old to new. `is_by_role`: what users
    wrote counts more. `needs_match`: only rows that contain a term; `needs_all`: every term. Scores
    depend on the rows alone, not on their distribution to blocks. A prefix needs the blocks' words.
    Returns nothing if the best row is below `min_relevance`, such as MIN_RELEVANCE.
    """
    rows = _Rows(parts)
    ranking = _Ranking(rows, query, is_by_role=is_by_role)
    among = _with_all(rows, query) if needs_all else ranking.matches if needs_match else None
    best = ranking.best(limit, among)
    if best and best[0][0] < min_relevance * ranking.mass:
        return []
    return [Scored(*rows.place_of(key), value, partial(ranking.why, key)) for value, key in best]


def is_relevant(parts: Sequence[Part], query: Query, *, is_by_role: bool = True) -> bool:
    """Whether the best row of a query reaches MIN_RELEVANCE."""
    found = score(parts, query, is_by_role=is_by_role, limit=1, min_relevance=MIN_RELEVANCE)
    return bool(found)


def matching(parts: Sequence[Part], query: Query) -> list[tuple[int, int]]:
    """Return session and seq of the rows that contain every term, newest first."""
    rows = _Rows(parts)
    newest = sorted(((rows.minute_at(key), key) for key in _with_all(rows, query)), reverse=True)
    return [rows.place_of(key) for _, key in newest]


def _with_all(rows: _Rows, query: Query) -> set[int]:
    """Return the keys of the rows that contain every term."""
    found: set[int] | None = None
    for lookup in _lookups(query):
        keys = rows.find(lookup).keys
        found = set(keys) if found is None else found.intersection(keys)
        if not found:
            break
    return found or set()


class _Rows:
    """The visible rows of all parts, under keys that increase by 1, or by more at a gap or session.

    So the neighbors of a row have its key ± 1, 2, …, and no key in reach is across a gap.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.flags = bytearray()
        """For each key: 1 for a row of a user, 0 for another row, 2 for no row."""
        self.count = self.user_count = self.length = 0
        self._firsts: list[int] = []
        """For each part a key not above those of its rows, and above all before."""
        self._keys: list[list[int] | None] = []
        """For each part the keys of its rows, -1 for hidden ones; None if they are consecutive."""
        session: int | None = None
        minute: int | None = None
        for part in parts:
            minute = self._add(part, minute if part.session == session else None)
            session = part.session
        self.flags += _NO_ROWS

    @property
    def mean_length(self) -> float:
        return self.length / self.count if self.length else 1.0

    def find(self, lookup: _Lookup) -> _Found:
        """Return the keys of the rows with a term, with frequencies and lengths."""
        found = _Found()
        for part, first, keys in zip(self.parts, self._firsts, self._keys, strict=True):
            lengths = part.block.lengths
            for indexes, frequencies in lookup(part.block):
                if part.hidden:
                    found.add_visible(keys or [], indexes, frequencies, lengths)
                    continue
                found.keys += (
                    [first + n for n in indexes] if keys is None else [keys[n] for n in indexes]
                )
                found.frequencies += frequencies
                found.lengths += [lengths[n] for n in indexes]
        return found if lookup.is_distinct else found.joined()

    def place_of(self, key: int) -> tuple[int, int]:
        """Return session and seq of a row."""
        part, n = self._row_at(key)
        return part.session, part.low + part.block.places[n]

    def minute_at(self, key: int) -> int:
        """Return the minute of a row."""
        part, n = self._row_at(key)
        return part.block.minutes[n]

    def _row_at(self, key: int) -> tuple[Part, int]:
        """Return the part of a row, and its index there."""
        at = bisect_right(self._firsts, key) - 1
        keys = self._keys[at]
        return self.parts[at], key - self._firsts[at] if keys is None else keys.index(key)

    def in_months(self, months: Collection[int], years: Collection[int]) -> set[int]:
        """Return the keys of the rows created in these months, of these years if there are any."""
        if not months:
            return set()
        found: set[int] = set()
        for at, part in enumerate(self.parts):
            days = [minute // _MINUTES_PER_DAY for minute in part.block.minutes]
            wanted = {
                day
                for day in set(days)
                if _month_of(day)[1] in months and (not years or _month_of(day)[0] in years)
            }
            if wanted:
                found.update(self._keys_where(at, (day in wanted for day in days)))
        return found

    def of_name(self, query: Query) -> tuple[str, set[int]]:
        """Return the only participant whom the query names, and the keys of the rows."""
        words = frozenset(query.words)
        named = {
            name
            for at, part in enumerate(self.parts)
            for number, name in enumerate(part.block.names, 1)
            if words.issuperset(folded_words(name) or [""])
            and any(self._keys_where(at, (n == number for n in part.block.name_numbers)))
        }
        if len(named) != 1:
            return "", set()
        (name,) = named
        found: set[int] = set()
        for at, part in enumerate(self.parts):
            if name in part.block.names:
                number = part.block.names.index(name) + 1
                found.update(self._keys_where(at, (n == number for n in part.block.name_numbers)))
        return name, found

    def _keys_where(self, at: int, is_wanted: Iterable[bool]) -> Iterable[int]:
        """Return the keys of those visible rows of a part."""
        keys, first = self._keys[at], self._firsts[at]
        if keys is None:
            return compress(range(first, first + self.parts[at].block.count), is_wanted)
        return (key for key in compress(keys, is_wanted) if key >= 0)

    def _add(self, part: Part, minute: int | None) -> int | None:
        """Add the rows of a part after a row of this minute; return the minute of the last row."""
        block = part.block
        if part.hidden or not block.count:
            return self._add_visible(part, minute)
        minutes = block.minutes
        self.count += block.count
        self.user_count += block.is_user.count(_USER)
        self.length += sum(block.lengths)
        if minute is None or minutes[0] - minute >= GAP_MINUTES:
            self.flags += _NO_ROWS
        self._firsts.append(len(self.flags))
        starts: list[int] = []
        if max(minutes) - min(minutes) >= GAP_MINUTES:
            differences = list(map(sub, minutes[1:], minutes))
            if max(differences) >= GAP_MINUTES:
                starts = [n for n, gap in enumerate(differences, 1) if gap >= GAP_MINUTES]
        self._keys.append(self._keys_with_gaps(block, starts) if starts else None)
        if not starts:
            self.flags += block.is_user
        return minutes[-1]

    def _keys_with_gaps(self, block: Block, starts: Sequence[int]) -> list[int]:
        """Add rows with gaps before these indexes; return the keys."""
        keys: list[int] = []
        for start, end in pairwise((0, *starts, block.count)):
            if start:
                self.flags += _NO_ROWS
            first = len(self.flags)
            keys += range(first, first + end - start)
            self.flags += block.is_user[start:end]
        return keys

    def _add_visible(self, part: Part, minute: int | None) -> int | None:
        block = part.block
        self._firsts.append(len(self.flags))
        keys = []
        for n, at in enumerate(block.minutes):
            if n in part.hidden:
                keys.append(-1)
                continue
            if minute is None or at - minute >= GAP_MINUTES:
                self.flags += _NO_ROWS
            minute = at
            keys.append(len(self.flags))
            self.flags.append(block.is_user[n])
            self.count += 1
            self.user_count += block.is_user[n]
            self.length += block.lengths[n]
        self._keys.append(keys)
        return minute


class _Found:
    """The rows with a term, as columns."""

    __slots__ = ("frequencies", "keys", "lengths")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.frequencies: list[int] = []
        self.lengths: list[int] = []

    def add_visible(
        self, keys: Sequence[int], indexes: bytes, frequencies: bytes, lengths: Sequence[int]
    ) -> None:
        for n, frequency in zip(indexes, frequencies, strict=True):
            if keys[n] >= 0:
                self.keys.append(keys[n])
                self.frequencies.append(frequency)
                self.lengths.append(lengths[n])

    def joined(self) -> _Found:
        """Add up the frequencies of rows that several terms of a prefix found."""
        sums: dict[int, int] = {}
        lengths = dict(zip(self.keys, self.lengths, strict=True))
        for key, frequency in zip(self.keys, self.frequencies, strict=True):
            sums[key] = sums.get(key, 0) + frequency
        self.keys = sorted(sums)
        self.frequencies = [sums[key] for key in self.keys]
        self.lengths = [lengths[key] for key in self.keys]
        return self


class _Lookup:
    """Finds a term in blocks, or the terms of prefixes."""

    __slots__ = ("_hashes", "_prefixes", "is_distinct")

    def __init__(self, terms: Iterable[str], prefixes: Collection[str] = ()) -> None:
        self._hashes = sorted(set(map(term_hash, terms)))
        self._prefixes = prefixes
        self.is_distinct = not prefixes
        """Whether each row is found once."""

    def __call__(self, block: Block) -> list[tuple[bytes, bytes]]:
        hashes = self._hashes
        for prefix in self._prefixes:
            hashes = sorted({*hashes, *map(term_hash, block.find_prefix(prefix))})
        return [block.find(number) for number in hashes]


def _lookups(query: Query, *, without: Collection[str] = ()) -> list[_Lookup]:
    """Return a look-up for each term, without those of some words if there are others."""
    pairs = list(zip(query.terms, query.sources, strict=True))
    kept = [term for term, source in pairs if source not in without]
    if not kept and not query.prefix:
        kept = list(query.terms)
    lookups = [_Lookup([term]) for term in kept]
    if query.prefix:
        lookups.append(_Lookup({query.prefix_term, *query.prefix_stems}, query.prefixes))
    return lookups


class _Weighed(NamedTuple):
    """A term with its rows."""

    idf: float
    frequencies: dict[int, int]


class _Ranking:
    """The scores of all rows that match, and of their neighbors.

    Lists have an item for each key. All sums are in the order of terms and keys, since the last
    digits of a sum of floats depend on it.
    """

    def __init__(self, rows: _Rows, query: Query, *, is_by_role: bool) -> None:
        self._flags = rows.flags
        self._weight = ROLE_WEIGHT if is_by_role else 1.0
        name, self._of_name = rows.of_name(query)
        self._in_months = rows.in_months(query.months, query.years)
        self._unweighted = [0.0] * len(rows.flags)
        self._terms: list[_Weighed] = []
        self.mass = 0.0
        """The sum of the rarities of all terms, also of those that no row has."""
        for lookup in _lookups(query, without=folded_words(name)):
            found = rows.find(lookup)
            idf = self._idf(rows, found.keys, is_by_role=is_by_role)
            self.mass += idf
            if found.keys:
                self._add(rows, found, idf)
        self.matches: set[int] = set().union(*(term.frequencies for term in self._terms))
        self._own = self._unweighted[:]
        if is_by_role:
            for key in self.matches:
                if self._flags[key] != _USER:
                    self._own[key] *= self._weight
        self._spread = _best(self._own, self.matches)
        self._is_spread = frozenset(self._spread)

    def best(self, limit: int | None, among: set[int] | None) -> list[tuple[float, int]]:
        """Return scores and keys of all rows or those `among` these, best first."""
        totals = self._totals()
        if among is not None:
            totals = [total for total in totals if total[1] in among]
        return sorted(totals, reverse=True) if limit is None else nlargest(limit, totals)

    def why(self, key: int) -> Why:
        """Return the parts of a row's score."""
        own, spread = self._own, self._is_spread
        before = [
            BEFORE_WEIGHT * BEFORE_DECAY ** (distance - 1) * own[key - distance]
            for distance in range(BEFORE, 0, -1)
            if key - distance in spread
        ]
        return Why(
            own=own[key],
            window=sum(self._window(term, key) for term in self._terms),
            before=sum(before),
            next=NEXT_WEIGHT * self._unweighted[key + 1] if key + 1 in spread else 0.0,
            month=MONTH_BONUS if key in self._in_months else 0.0,
            name=NAME_BONUS if key in self._of_name else 0.0,
        )

    def _window(self, term: _Weighed, key: int) -> float:
        frequency = sum(
            term.frequencies.get(near, 0) * (1.0 if self._flags[near] == _USER else self._weight)
            for near in range(key - WINDOW, key + WINDOW + 1)
            if near in self._is_spread
        )
        return WINDOW_WEIGHT * term.idf * (K1 + 1) * frequency / (frequency + K1)

    def _add(self, rows: _Rows, found: _Found, idf: float) -> None:
        """Add the scores of a term, in BM25's formula."""
        self._terms.append(_Weighed(idf, dict(zip(found.keys, found.frequencies, strict=True))))
        factor, fixed, by_length = idf * (K1 + 1), K1 * (1 - B), K1 * B / rows.mean_length
        scores = self._unweighted
        for key, frequency, length in zip(
            found.keys, found.frequencies, found.lengths, strict=True
        ):
            scores[key] += factor * frequency / (frequency + fixed + by_length * length)

    def _idf(self, rows: _Rows, keys: Sequence[int], *, is_by_role: bool) -> float:
        """Weigh a term by its rarity: in rows, or in the mean of rows and rows of users."""
        frequency: float = len(keys)
        if is_by_role and rows.user_count:
            of_users = sum(map(self._flags.__getitem__, keys))  # a flag is 1 for a user, else 0
            frequency = (frequency + of_users * rows.count / rows.user_count) / 2
        return math.log(1 + max(0.0, rows.count - frequency + 0.5) / (frequency + 0.5))

    def _totals(self) -> list[tuple[float, int]]:
        """Return the score and key of each row in reach of a match."""
        sums = self._own[:]
        for term in self._terms:
            self._add_windows(sums, term)
        self._add_neighbors(sums)
        flags, weight, reached = self._flags, self._weight, self._reached()
        for keys, bonus in ((self._in_months, MONTH_BONUS), (self._of_name, NAME_BONUS)):
            for key in keys:
                sums[key] += bonus if flags[key] == _USER else bonus / weight
        return [
            (sums[key] if flags[key] == _USER else sums[key] * weight, key)
            for key in reached
            if flags[key] != _NO_ROW
        ]

    def _add_windows(self, sums: list[float], term: _Weighed) -> None:
        """Add for each row the score of the rows around it and its own, as one text."""
        flags, frequencies = self._flags, term.frequencies
        around: dict[int, float] = {}
        for key in self._spread:
            frequency: float | None = frequencies.get(key)
            if frequency is None:
                continue
            if flags[key] != _USER:
                frequency *= self._weight
            for near in range(key - WINDOW, key + WINDOW + 1):
                around[near] = around.get(near, 0.0) + frequency
        factor = WINDOW_WEIGHT * term.idf * (K1 + 1)
        for near, frequency in around.items():
            sums[near] += factor * frequency / (frequency + K1)

    def _add_neighbors(self, sums: list[float]) -> None:
        """Add the scores of the rows before, less with their distance, and of the next row."""
        own, unweighted = self._own, self._unweighted
        weights = [BEFORE_WEIGHT * BEFORE_DECAY**n for n in range(BEFORE)]
        for key in self._spread:
            value = own[key]
            for after, weight in enumerate(weights, key + 1):
                sums[after] += weight * value
            sums[key - 1] += NEXT_WEIGHT * unweighted[key]

    def _reached(self) -> Iterable[int]:
        """Return the keys of matches and of their neighbors."""
        reached = bytearray(len(self._flags))
        for key in self._spread:
            reached[key - WINDOW : key + BEFORE + 1] = _REACH
        return compress(range(len(reached)), reached)


def _best(scores: Sequence[float], matches: Collection[int]) -> list[int]:
    """Return the keys of the best MAX_SPREAD matches, the newest of equal ones, in their order."""
    if len(matches) <= MAX_SPREAD:
        return sorted(matches)
    lowest = sorted(map(scores.__getitem__, matches))[-MAX_SPREAD]
    above = [key for key in matches if scores[key] > lowest]
    equal = sorted(key for key in matches if scores[key] == lowest)
    return sorted(above + equal[len(above) - MAX_SPREAD :])


@cache
def _month_of(day: int) -> tuple[int, int]:
    """Return year and month of a day since 1970; (0, 0) after the year 9999."""
    try:
        moment = date.fromordinal(date(1970, 1, 1).toordinal() + day)
    except (ValueError, OverflowError):
        return 0, 0
    return moment.year, moment.month
