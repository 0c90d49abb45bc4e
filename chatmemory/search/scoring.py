"""Ranks the rows of search blocks for a query.

The weights were fitted on half of two corpora; docs/reasons/search-bench.md has the figures.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from heapq import nlargest
from itertools import compress
from typing import Final

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

_USER, _OTHER, _NO_ROW = 1, 0, 2

_NO_ROWS: Final = bytes([_NO_ROW]) * 8
"""Keys without rows at a gap: more than any neighbor's distance."""

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
    why: Why


def score(
    parts: Sequence[Part], query: Query, *, is_by_role: bool, limit: int | None = None
) -> list[Scored]:
    """Return the rows that match or have neighbors that match, best first, then newest first.

    `parts` are grouped by session, sessions and rows from old to new. `is_by_role`: what users
    wrote counts more. Scores depend on the rows alone, not on their distribution to blocks. A
    prefix needs the blocks' words. Raises CorruptBlock.
    """
    rows = _Rows(parts)
    ranking = _Ranking(rows, query, is_by_role=is_by_role)
    totals = ranking.totals()
    pairs = zip(totals.values(), totals.keys(), strict=True)
    best = sorted(pairs, reverse=True) if limit is None else nlargest(limit, pairs)
    return [Scored(*rows.place_of(key), value, ranking.why(key)) for value, key in best]


def matching(parts: Sequence[Part], query: Query) -> list[tuple[int, int]]:
    """Return session and seq of the rows that contain every term, newest first."""
    rows = _Rows(parts)
    found: set[int] | None = None
    for lookup in _lookups(query):
        keys = rows.find(lookup).keys
        found = set(keys) if found is None else found.intersection(keys)
        if not found:
            break
    newest = sorted(((rows.minute_at(key), key) for key in found or ()), reverse=True)
    return [rows.place_of(key) for _, key in newest]


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
                if keys is None:
                    found.keys += [first + n for n in indexes]
                    found.frequencies += frequencies
                    found.lengths += [lengths[n] for n in indexes]
                    continue
                for n, frequency in zip(indexes, frequencies, strict=True):
                    if keys[n] >= 0:
                        found.keys.append(keys[n])
                        found.frequencies.append(frequency)
                        found.lengths.append(lengths[n])
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
        minutes = block.minutes
        if part.hidden or not block.count or max(minutes) - min(minutes) >= GAP_MINUTES:
            return self._add_each(part, minute)
        if minute is None or minutes[0] - minute >= GAP_MINUTES:
            self.flags += _NO_ROWS
        self._firsts.append(len(self.flags))
        self._keys.append(None)
        self.flags += block.is_user
        self.count += block.count
        self.user_count += block.is_user.count(1)
        self.length += sum(block.lengths)
        return minutes[-1]

    def _add_each(self, part: Part, minute: int | None) -> int | None:
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
    """Finds a term in blocks, or the terms of a prefix."""

    __slots__ = ("_hashes", "_prefix", "is_distinct")

    def __init__(self, terms: Iterable[str], prefix: str = "") -> None:
        self._hashes = sorted(set(map(term_hash, terms)))
        self._prefix = prefix
        self.is_distinct = not prefix
        """Whether each row is found once."""

    def __call__(self, block: Block) -> list[tuple[bytes, bytes]]:
        hashes = self._hashes
        if self._prefix:
            hashes = sorted({*hashes, *map(term_hash, block.find_prefix(self._prefix))})
        return [block.find(number) for number in hashes]


def _lookups(query: Query, *, without: Collection[str] = ()) -> list[_Lookup]:
    """Return a look-up for each term, without those of some words if there are others."""
    pairs = list(zip(query.terms, query.sources, strict=True))
    kept = [term for term, source in pairs if source not in without]
    if not kept and not query.prefix:
        kept = list(query.terms)
    lookups = [_Lookup([term]) for term in kept]
    if query.prefix:
        lookups.append(_Lookup({query.prefix_term, *_stems(query.prefix)}, query.prefix))
    return lookups


def _stems(prefix: str) -> set[str]:
    """Return terms of which the prefix may be an inflected form: "runn" of "running" has "run"."""
    return {prefix[:n] for n in range(max(3, len(prefix) - 4), len(prefix))}


class _Ranking:
    """The scores of all rows that match, and of their neighbors."""

    def __init__(self, rows: _Rows, query: Query, *, is_by_role: bool) -> None:
        self._flags = rows.flags
        self._weight = ROLE_WEIGHT if is_by_role else 1.0
        name, self._of_name = rows.of_name(query)
        self._in_months = rows.in_months(query.months, query.years)
        self._terms: list[tuple[float, dict[int, int]]] = []
        self._unweighted: dict[int, float] = {}
        for lookup in _lookups(query, without=folded_words(name)):
            self._add(rows, rows.find(lookup), is_by_role=is_by_role)
        self._own = self._weighted(self._unweighted)
        self._spread = self._best()
        self._window = self._windows()
        self._before = self._supported()
        self._next = {
            key - 1: NEXT_WEIGHT * self._unweighted[key]
            for key in self._spread
            if self._flags[key - 1] != _NO_ROW
        }

    def totals(self) -> dict[int, float]:
        """Return the score of each row by its key."""
        own, window, before, following = self._own, self._window, self._before, self._next
        in_months, of_name, flags, weight = (
            self._in_months,
            self._of_name,
            self._flags,
            self._weight,
        )
        totals = {}
        for key in {*own, *before} | window.keys() | following.keys():
            value = (
                own.get(key, 0.0) + window.get(key, 0.0) + before.get(key, 0.0)
                + following.get(key, 0.0)
            )  # fmt: skip
            if flags[key] != _USER:
                value *= weight
            if key in in_months:
                value += MONTH_BONUS
            if key in of_name:
                value += NAME_BONUS
            totals[key] = value
        return totals

    def why(self, key: int) -> Why:
        return Why(
            own=self._own.get(key, 0.0),
            window=self._window.get(key, 0.0),
            before=self._before.get(key, 0.0),
            next=self._next.get(key, 0.0),
            month=MONTH_BONUS if key in self._in_months else 0.0,
            name=NAME_BONUS if key in self._of_name else 0.0,
        )

    def _add(self, rows: _Rows, found: _Found, *, is_by_role: bool) -> None:
        """Add the scores of a term, in BM25's formula."""
        if not found.keys:
            return
        idf = self._idf(rows, found.keys, is_by_role=is_by_role)
        factor, fixed, by_length = idf * (K1 + 1), K1 * (1 - B), K1 * B / rows.mean_length
        values = [
            factor * frequency / (frequency + fixed + by_length * length)
            for frequency, length in zip(found.frequencies, found.lengths, strict=True)
        ]
        self._terms.append((idf, dict(zip(found.keys, found.frequencies, strict=True))))
        if not self._unweighted:
            self._unweighted = dict(zip(found.keys, values, strict=True))
            return
        scores = self._unweighted
        for key, value in zip(found.keys, values, strict=True):
            scores[key] = scores.get(key, 0.0) + value

    def _idf(self, rows: _Rows, keys: Sequence[int], *, is_by_role: bool) -> float:
        """Weigh a term by its rarity: in rows, or in the mean of rows and rows of users."""
        frequency: float = len(keys)
        if is_by_role and rows.user_count:
            of_users = sum(map(self._flags.__getitem__, keys))  # a flag is 1 for a user, else 0
            frequency = (frequency + of_users * rows.count / rows.user_count) / 2
        return math.log(1 + max(0.0, rows.count - frequency + 0.5) / (frequency + 0.5))

    def _weighted(self, scores: dict[int, float]) -> dict[int, float]:
        if self._weight == 1:
            return scores
        flags, weight = self._flags, self._weight
        return {
            key: value if flags[key] == _USER else value * weight for key, value in scores.items()
        }

    def _best(self) -> list[int]:
        """Return the keys of the best MAX_SPREAD matches, in their order."""
        if len(self._own) <= MAX_SPREAD:
            return sorted(self._own)
        lowest = sorted(self._own.values())[-MAX_SPREAD]
        above = [key for key, value in self._own.items() if value > lowest]
        equal = sorted(key for key, value in self._own.items() if value == lowest)
        return sorted(above + equal[len(above) - MAX_SPREAD :])

    def _windows(self) -> dict[int, float]:
        """Return for each row the score of the rows around it and its own, as one text."""
        flags = self._flags
        windows: dict[int, float] = {}
        for idf, frequencies in self._terms:
            sums: dict[int, int] = {}
            for key in self._spread:
                frequency = frequencies.get(key)
                if frequency:
                    for near in range(key - WINDOW, key + WINDOW + 1):
                        sums[near] = sums.get(near, 0) + frequency
            factor = WINDOW_WEIGHT * idf * (K1 + 1)
            for near, frequency in sums.items():
                if flags[near] != _NO_ROW:
                    value = factor * frequency / (frequency + K1)
                    windows[near] = windows.get(near, 0.0) + value
        return windows

    def _supported(self) -> dict[int, float]:
        """Return for each row the sum of the scores of the rows before it, less with distance."""
        flags, own = self._flags, self._own
        weights = [BEFORE_WEIGHT * BEFORE_DECAY**n for n in range(BEFORE)]
        sums: dict[int, float] = {}
        for key in self._spread:
            value = own[key]
            for after, weight in enumerate(weights, key + 1):
                if flags[after] == _NO_ROW:
                    break
                sums[after] = sums.get(after, 0.0) + weight * value
        return sums


@cache
def _month_of(day: int) -> tuple[int, int]:
    """Return year and month of a day since 1970; (0, 0) after the year 9999."""
    try:
        moment = date.fromordinal(date(1970, 1, 1).toordinal() + day)
    except (ValueError, OverflowError):
        return 0, 0
    return moment.year, moment.month
