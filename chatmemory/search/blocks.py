"""The format of a search block: the terms of up to 128 rows of a session.

Little-endian. A header; then, for each row, the minute of its creation u32; for each distinct term
its CRC-32 u32, sorted; the offsets of the terms' pairs u32, one more than terms; for each row its
length in terms u16, whether a user wrote it u8, its place u8 and the number of its name u8; the
pairs of row u8 and frequency u8; the names. `words` is apart, since only a prefix needs it: the
sorted terms, compressed. Terms of one CRC-32 share their pairs, which costs rank only.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

MAX_ROWS: Final = 128
MAX_FREQUENCY: Final = 255
MAX_LENGTH: Final = 65_535
MAX_NAME_BYTES: Final = 1_020

_FORMAT: Final = 1
_HEADER: Final = struct.Struct("<BBHIII")
"""Format, 0, rows, terms, pairs, bytes of the names."""
_OFFSETS: Final = struct.Struct("<II")
_MAX_TERM_BYTES: Final = 4 * 64 + 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_SWAPS: Final = sys.byteorder == "big"


class CorruptBlock(ValueError):
    """The bytes of a block are damaged, or of another format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """A row as it enters a block."""

    place: int
    """Its seq, less that of the block's place 0; up to 255."""
    role: str
    name: str | None = None
    """The participant who wrote it."""
    created_at: datetime
    terms: Sequence[str]


@dataclass(frozen=True, slots=True)
class Packed:
    """The bytes of a block."""

    postings: bytes
    words: bytes


def term_hash(term: str) -> int:
    """Return the number by which a block finds a term."""
    return zlib.crc32(term.encode())


def minute_of(moment: datetime) -> int:
    """Return the minutes since 1970, at least 0."""
    return max(0, (moment - _EPOCH) // _MINUTE)


_MINUTE: Final = datetime(1970, 1, 1, 0, 1, tzinfo=UTC) - _EPOCH


def pack(rows: Sequence[BlockRow]) -> Packed:
    """Return the bytes of up to MAX_ROWS rows, which must be in the order of their places.

    Raises ValueError for more rows, and for places that do not increase or exceed 255.
    """
    places = [row.place for row in rows]
    if len(rows) > MAX_ROWS or places != sorted(set(places)):
        raise ValueError(f"A block has up to {MAX_ROWS} rows, and their places increase.")
    pairs_by_hash: dict[int, list[tuple[int, int]]] = {}
    terms: set[str] = set()
    for index, row in enumerate(rows):
        counts = Counter(row.terms)
        terms.update(counts)
        for term, count in counts.items():
            pairs_by_hash.setdefault(zlib.crc32(term.encode()), []).append((index, count))
    hashes = sorted(pairs_by_hash)
    offsets = array("I", [0])
    pairs = bytearray()
    for number in hashes:
        for index, count in _summed(pairs_by_hash[number]):
            pairs += bytes((index, min(count, MAX_FREQUENCY)))
        offsets.append(len(pairs) // 2)
    names = list(dict.fromkeys(cut for row in rows if (cut := _encoded(row.name))))
    numbers = {name: number for number, name in enumerate(names, 1)}
    name_bytes = b"".join(struct.pack("<H", len(name)) + name for name in names)
    postings = b"".join(
        (
            _HEADER.pack(_FORMAT, 0, len(rows), len(hashes), len(pairs) // 2, len(name_bytes)),
            _stored("I", [minute_of(row.created_at) for row in rows]),
            _stored("I", hashes),
            _stored("I", offsets),
            _stored("H", [min(len(row.terms), MAX_LENGTH) for row in rows]),
            bytes(row.role == "user" for row in rows),
            bytes(places),
            bytes(numbers.get(_encoded(row.name), 0) for row in rows),
            pairs,
            name_bytes,
        )
    )
    return Packed(postings, zlib.compress("\n".join(sorted(terms)).encode()))


def _summed(pairs: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Add the frequencies of a row: terms of one hash may both be in it."""
    if len(pairs) < 2 or len({index for index, _ in pairs}) == len(pairs):
        return pairs
    sums: Counter[int] = Counter()
    for index, count in pairs:
        sums[index] += count
    return sorted(sums.items())


def _encoded(name: str | None) -> bytes:
    return (name or "").encode(errors="replace")[:MAX_NAME_BYTES]


def _stored(code: str, values: Iterable[int]) -> bytes:
    numbers = array(code, values)
    if _SWAPS:
        numbers.byteswap()
    return numbers.tobytes()


def _loaded(code: str, data: bytes) -> array[int]:
    numbers = array(code)
    numbers.frombytes(data)
    if _SWAPS:
        numbers.byteswap()
    return numbers


class Block:
    """Reads a block.

    Creating it, `find` and `find_prefix` raise CorruptBlock for bytes that are none. A changed bit
    in a number is not noticed: the caller reads each row again.
    """

    __slots__ = (
        "_hashes",
        "_pairs_at",
        "_postings",
        "_words",
        "count",
        "is_user",
        "lengths",
        "minutes",
        "name_numbers",
        "names",
        "places",
    )

    count: int
    """Number of rows."""
    minutes: array[int]
    lengths: array[int]
    is_user: bytes
    """1 for a row of a user, else 0."""
    places: bytes
    name_numbers: bytes
    """0 for a row without a name, else one more than the index in `names`."""
    names: tuple[str, ...]

    def __init__(self, postings: bytes, words: bytes | None = None) -> None:
        postings = bytes(postings)  # some drivers return a memoryview
        if len(postings) < _HEADER.size:
            raise CorruptBlock("The block is shorter than its header.")
        format, zero, n, k, pairs, name_bytes = _HEADER.unpack_from(postings)
        if format != _FORMAT or zero or n > MAX_ROWS:
            raise CorruptBlock("The block has another format.")
        if len(postings) != _HEADER.size + 9 * n + 8 * k + 4 + 2 * pairs + name_bytes:
            raise CorruptBlock("The block has another length than its header states.")
        self.count = n
        at = _HEADER.size
        self.minutes = _loaded("I", postings[at : (at := at + 4 * n)])
        self._hashes = _loaded("I", postings[at : (at := at + 4 * k)])
        at += 4 * k + 4
        self.lengths = _loaded("H", postings[at : (at := at + 2 * n)])
        self.is_user = postings[at : (at := at + n)]
        self.places = postings[at : (at := at + n)]
        self.name_numbers = postings[at : (at := at + n)]
        self._pairs_at = at
        self._postings = postings  # not copied: most of it is never read
        self.names = tuple(_names(postings[at + 2 * pairs :])) if name_bytes else ()
        self._words = words
        if n and (max(self.is_user) > 1 or max(self.name_numbers) > len(self.names)):
            raise CorruptBlock("The block has impossible numbers.")

    def find(self, number: int) -> tuple[bytes, bytes]:
        """Return the indexes of the rows with a term, by its hash, and its frequencies in them."""
        hashes = self._hashes
        at = bisect_left(hashes, number)
        if at == len(hashes) or hashes[at] != number:
            return b"", b""
        data, pairs_at = self._postings, self._pairs_at
        offset_at = _HEADER.size + 4 * (self.count + len(hashes) + at)
        first, last = _OFFSETS.unpack_from(data, offset_at)
        start, end = pairs_at + 2 * first, pairs_at + 2 * last
        rows = data[start:end:2]
        if not start < end <= len(data) or max(rows) >= self.count:
            raise CorruptBlock("The block has impossible pairs.")
        return rows, data[start + 1 : end : 2]

    def find_prefix(self, prefix: str) -> list[str]:
        """Return the terms that begin with a prefix, sorted. Raises ValueError without `words`."""
        if self._words is None:
            raise ValueError("The block was read without its words.")
        words = self._read_words()
        found = []
        for n in range(bisect_left(words, prefix), len(words)):
            if not words[n].startswith(prefix):
                break
            found.append(words[n])
        return found

    def is_sound(self) -> bool:
        """Return whether all numbers are possible. `find` notices only those of its term."""
        try:
            for number in self._hashes:
                self.find(number)
            return self._words is None or bool(self._read_words())
        except CorruptBlock:
            return False

    def _read_words(self) -> list[str]:
        limit = (len(self._hashes) + 1) * _MAX_TERM_BYTES * 2
        reader = zlib.decompressobj()
        try:
            text = reader.decompress(bytes(self._words or b""), limit).decode()
        except (zlib.error, UnicodeDecodeError) as error:
            raise CorruptBlock("The words of the block are damaged.") from error
        if not reader.eof:
            raise CorruptBlock("The words of the block are not complete.")
        return text.split("\n")


def _names(data: bytes) -> Iterator[str]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        name = data[at + 2 : at + 2 + size]
        at += 2 + size
        if at > len(data) or not size:
            raise CorruptBlock("The names of the block are damaged.")
        yield name.decode(errors="replace")
