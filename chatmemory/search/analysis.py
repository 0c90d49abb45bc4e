"""The terms of a text and of a query, and where a text contains the words of a query."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from threading import Lock
from typing import Final, Literal

try:
    import snowballstemmer
except ImportError:  # the extra `search` is not installed
    snowballstemmer = None

from chatmemory.search.words import AMBIGUOUS_MONTHS, BEFORE_MONTHS, MONTHS, STOP_WORDS

VERSION: Final = 1
"""Part of the analyzer's name: a change of the terms needs a new one."""

MAX_CHARS: Final = 32_000
"""Characters of a text that are analyzed."""

MAX_TEXT_TERMS: Final = 8_000
"""Terms of a text that are used: pairs of Han characters could be 32,000 different ones."""

MAX_TERMS: Final = 32
"""Terms of a query that are used."""

MAX_TERM_CHARS: Final = 64
"""Longer words are cut."""

PREFIX_CHARS: Final = 5
"""Length of the terms of a language without stems."""

Mode = Literal["words", "prefix", "phrase"]
Range = tuple[int, int]
Span = tuple[str, int, int]

_CJK = (
    "\u1100-\u11ff\u3005\u3007\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
"""Han, kana and hangul, which do not separate words by spaces, or inflect them by endings."""

_WITH_MARKS = ((0x300, 0x1E00), (0x20D0, 0x2100), (0x2CEF, 0x2E00), (0xA66F, 0xAC00),
               (0xFE00, 0xFE30), (0x10A00, 0x11F50), (0x1E8D0, 0x1E950))  # fmt: skip
"""Where Unicode has combining marks, which `\\w` does not match."""

_MARKS = "".join(
    chr(point)
    for low, high in _WITH_MARKS
    for point in range(low, high)
    if unicodedata.category(chr(point))[0] == "M"
)

_ASCII_WORD = re.compile(r"\w+", re.ASCII)
_WORD = re.compile(rf"\w[\w{_MARKS}]*")
_HAS_CJK = re.compile(rf"[{_CJK}]")
_CJK_RUN = re.compile(rf"[{_CJK}]+|[^{_CJK}]+")

_INVISIBLE = "\u00ad\u200b-\u200d\u2060\ufeff"

_CLUSTER = re.compile(
    rf".[{_MARKS}{_INVISIBLE}\u1160-\u11ff\ua960-\ua97f\ud7b0-\ud7ff\uff9e-\uffdc]*", re.DOTALL
)
"""A character with what NFKC may combine it with: the clusters of a text are normalized alone."""

_MAY_HAVE_LONG_MARKS = re.compile(r"[\W\uff9e\uff9f]{31}")
_LONG_MARKS = re.compile(rf"[{_MARKS}{_INVISIBLE}\uff9e\uff9f]{{31,}}")
"""More marks than any letter has (UAX 15, 13): to sort 32,000 of them takes seconds."""

_REMOVED = dict.fromkeys((0xAD, 0x307, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF)) | {0x131: "i"}
"""Invisible characters, and the dots of Turkish letters: with and without one they are equal."""

_YEAR = re.compile(r"(?:19|20)\d\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a search asks for."""

    mode: Mode
    words: tuple[str, ...]
    """All words in their order, folded; Han, kana and hangul as runs."""
    terms: tuple[str, ...]
    """Distinct terms in their order, without the prefix."""
    sources: tuple[str, ...]
    """The word of each term."""
    prefix: str = ""
    """The beginning of a word, in the mode "prefix"."""
    prefix_term: str = ""
    """The term of the prefix, if it is a whole word."""
    prefixes: frozenset[str] = frozenset()
    """The beginnings of terms that words with the prefix may have."""
    prefix_stems: frozenset[str] = frozenset()
    """Terms of which the prefix may be an inflected form: "runn" of "running" has "run"."""
    months: frozenset[int] = frozenset()
    """Months that the query names, from 1."""
    years: frozenset[int] = frozenset()
    """Years that it names."""

    def __bool__(self) -> bool:
        return bool(self.terms or self.prefix)

    def of_prefix(self) -> Query:
        """Return the query without its whole words."""
        return replace(self, terms=(), sources=())


@dataclass(frozen=True, slots=True)
class Analyzer:
    """Makes terms: Snowball stems of a language, or the first five characters of each word.

    `language` is a name that Snowball has, such as "english". Other ones and "" have no stems, and
    no language has them without the package.
    """

    language: str = "english"

    @property
    def name(self) -> str:
        """The version and language; terms of another name are not comparable."""
        stems = "" if _stemmer(self.language) else f"~{PREFIX_CHARS}"
        return f"{VERSION}:{self.language[:20]}{stems}"

    def terms(self, text: str) -> list[str]:
        """Return the terms of the first MAX_CHARS characters in their order, with duplicates.

        At most MAX_TEXT_TERMS.
        """
        text = text[:MAX_CHARS]
        term_of = _term_function(self.language)
        if text.isascii():
            return list(map(term_of, _ASCII_WORD.findall(text.lower())[:MAX_TEXT_TERMS]))
        folded = _fold(text)
        if _HAS_CJK.search(folded) is None:
            return list(map(term_of, _WORD.findall(folded)[:MAX_TEXT_TERMS]))
        return [term for term, _, _ in islice(self._spans(folded), MAX_TEXT_TERMS)]

    def parse(self, query: str, mode: Mode = "words") -> Query:
        """Return the terms of a query, without stop words unless it has no other words."""
        folded = _fold(query[:MAX_CHARS])
        words = [word for word, _, _ in _words(folded)]
        prefix = words[-1] if mode == "prefix" and words else ""
        if len(prefix) > 1 and _HAS_CJK.match(prefix):
            prefix = ""  # its pairs of characters are terms
        asked = words[:-1] if prefix else words
        stop_words = STOP_WORDS.get(self.language, frozenset())
        kept = [word for word in asked if word not in stop_words]
        if not kept and not prefix:
            kept = asked
        sources: dict[str, str] = {}
        for word in kept:
            for term, _, _ in self._terms_of(word, 0):
                sources.setdefault(term, word)
        used = list(sources.items())[:MAX_TERMS]
        months, years = _dates(query[:MAX_CHARS])
        return Query(
            mode=mode,
            words=tuple(words),
            terms=tuple(term for term, _ in used),
            sources=tuple(word for _, word in used),
            prefix=prefix[:MAX_TERM_CHARS],
            prefix_term=_term_function(self.language)(prefix) if prefix else "",
            prefixes=frozenset(_prefixes(prefix[:MAX_TERM_CHARS])),
            prefix_stems=frozenset(self._stems_of(prefix[:MAX_TERM_CHARS])),
            months=months,
            years=years,
        )

    def _stems_of(self, prefix: str) -> Iterator[str]:
        for n in range(max(3, len(prefix) - 4), len(prefix)):
            yield prefix[:n]
            yield _term_function(self.language)(prefix[:n])

    def matches(self, query: Query, text: str) -> list[Range]:
        """Return the ranges of characters of `text` that match, in their order, without overlaps.

        In the mode "phrase" a range is a whole phrase; in the mode "prefix" a word that begins so.
        """
        text = text[:MAX_CHARS]
        folded, places = _fold_with_places(text)
        if query.mode == "phrase":
            found = _phrases(_phrase_parts(" ".join(query.words)), _phrase_parts(folded))
        else:
            found = self._found(query, folded)
        if places is None:
            return _joined(found)
        return _joined((places[start][0], places[end - 1][1]) for start, end in found)

    def _found(self, query: Query, folded: str) -> Iterator[Range]:
        terms = frozenset((*query.terms, query.prefix_term) if query.prefix else query.terms)
        prefix, term_of = query.prefix, _term_function(self.language)
        for word, at, end in _words(folded):
            if prefix and word.startswith(prefix):
                yield at, end
            elif _HAS_CJK.match(word) is None:
                if term_of(word) in terms:
                    yield at, end
            else:
                pairs = self._terms_of(word, at)
                yield from ((start, end) for term, start, end in pairs if term in terms)

    def _spans(self, folded: str) -> Iterator[Span]:
        for word, at, _ in _words(folded):
            yield from self._terms_of(word, at)

    def _terms_of(self, word: str, at: int) -> Iterator[Span]:
        """Yield the terms of a word with their places: the pairs of a run, or the word's own."""
        if _HAS_CJK.match(word) is None:
            yield _term_function(self.language)(word), at, at + len(word)
        elif len(word) == 1:
            yield word, at, at + 1
        else:
            for n in range(len(word) - 1):
                yield word[n : n + 2], at + n, at + n + 2


def folded_words(text: str) -> list[str]:
    """Return the words of a text as a query has them, without stems."""
    return [word for word, _, _ in _words(_fold(text))]


def has_stems(language: str) -> bool:
    """Return whether there are rules for the words of a language."""
    return _stemmer(language) is not None


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    if _MAY_HAVE_LONG_MARKS.search(text):  # which is much faster
        text = _LONG_MARKS.sub(lambda marks: marks[0][:30], text)
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_REMOVED)
    return unicodedata.normalize("NFC", folded)


def _fold_with_places(text: str) -> tuple[str, list[Range] | None]:
    """Return the folded text and the range of each of its characters in `text`; None if equal."""
    folded = _fold(text)
    if len(folded) == len(text) and not _shifts(text):
        return folded, None
    parts: list[str] = []
    places: list[Range] = []
    for cluster in _CLUSTER.finditer(text):
        part = _fold(cluster.group())
        parts.append(part)
        places += [cluster.span()] * len(part)
    return "".join(parts), places


def _shifts(text: str) -> bool:
    """Whether folding may remove and add characters, so that an equal length proves nothing."""
    return (
        not unicodedata.is_normalized("NFKC", text)
        or len(text.casefold()) != len(text)  # as ß does; "J̌" has one character less as "ǰ"
        or any(chr(point) in text for point, new in _REMOVED.items() if new is None)
    )


def _prefixes(prefix: str) -> set[str]:
    """Return a prefix and, since stems lose accents, the one without: "büro" and "buro"."""
    if not prefix or _HAS_CJK.match(prefix):
        return {prefix} - {""}
    letters = (
        char for char in unicodedata.normalize("NFD", prefix) if not unicodedata.combining(char)
    )
    return {prefix, unicodedata.normalize("NFC", "".join(letters))}


def _words(folded: str) -> Iterator[Span]:
    """Yield words, with runs of Han, kana and hangul apart."""
    if folded.isascii():
        for word in _ASCII_WORD.finditer(folded):
            yield word.group(), *word.span()
        return
    for word in _WORD.finditer(folded):
        if _HAS_CJK.search(word.group()) is None:
            yield word.group(), *word.span()
            continue
        for part in _CJK_RUN.finditer(word.group()):
            yield part.group(), word.start() + part.start(), word.start() + part.end()


def _phrase_parts(folded: str) -> list[Span]:
    """Return words, but each character of Han, kana and hangul for itself."""
    return [
        span
        for word, at, end in _words(folded)
        for span in (
            [(word, at, end)]
            if _HAS_CJK.match(word) is None
            else [(char, at + n, at + n + 1) for n, char in enumerate(word)]
        )
    ]


def _phrases(phrase: Sequence[Span], parts: Sequence[Span]) -> Iterator[Range]:
    wanted = [word for word, _, _ in phrase]
    words = [word for word, _, _ in parts]
    n, size = 0, len(wanted)
    while size and n + size <= len(words):
        if words[n] == wanted[0] and words[n : n + size] == wanted:
            yield parts[n][1], parts[n + size - 1][2]
            n += size
        else:
            n += 1


def _joined(ranges: Iterator[Range]) -> list[Range]:
    """Join ranges that overlap, as pairs of characters do."""
    joined: list[Range] = []
    for start, end in ranges:
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _dates(query: str) -> tuple[frozenset[int], frozenset[int]]:
    """Return the months and years that an English query names; years only with a month.

    "may" and "march" are months beside a number or after a preposition.
    """
    words = _ASCII_WORD.findall(query.lower())
    months = set()
    for n, word in enumerate(words):
        month = MONTHS.get(word)
        if month and (word not in AMBIGUOUS_MONTHS or _is_month(words, n)):
            months.add(month)
    years = {int(word) for word in words if months and _YEAR.fullmatch(word)}
    return frozenset(months), frozenset(years)


def _is_month(words: Sequence[str], n: int) -> bool:
    before = words[n - 1] if n else ""
    after = words[n + 1] if n + 1 < len(words) else ""
    return before in BEFORE_MONTHS or before[:1].isdigit() or after[:1].isdigit()


@cache
def _stemmer(language: str) -> Callable[[str], str] | None:
    if snowballstemmer is None or language not in snowballstemmer.algorithms():
        return None
    stem = snowballstemmer.stemmer(language).stemWord
    lock = Lock()

    def locked(word: str) -> str:
        with lock:  # a stemmer has state
            return str(stem(word))

    return locked


@cache
def _term_function(language: str) -> Callable[[str], str]:
    stem = _stemmer(language)
    if stem is None:
        return _beginning

    @lru_cache(maxsize=65_536)  # a stem takes 30 µs or more
    def term_of(word: str) -> str:
        return word[:MAX_TERM_CHARS] if len(word) > MAX_TERM_CHARS else stem(word) or word

    return term_of


def _beginning(word: str) -> str:
    return word[:PREFIX_CHARS]
