"""The format of a search block: the terms of up to 128 rows of a session.

Little-endian. The CRC-32 of all that follows; a header; then, for each row, the minute of its
creation u32; for each distinct term its CRC-32 u32, sorted; the offsets of the terms' pairs u32,
one more than terms; for each row its length in terms u16, whether a user wrote it u8, its place u8
and the number of its name u8; the pairs of row u8 and frequency u8; the names. `words` is apart,
since only a prefix needs it: the sorted terms, compressed; the header has its CRC-32. Terms of one
CRC-32 share their pairs, which costs rank only.
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
_SUM: Final = struct.Struct("<I")
_HEADER: Final = struct.Struct("<IBBHIIII")
"""CRC-32 of what follows, format, 0, rows, terms, pairs, bytes of the names, CRC-32 of `words`."""
_OFFSETS: Final = struct.Struct("<II")
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
    found: list[int] = []
    terms: set[str] = set()
    for index, row in enumerate(rows):
        counts = Counter(row.terms)
        terms.update(counts)
        found += _numbers(index, counts)
    found.sort()
    hashes, offsets = array("I"), array("I")
    for at, number in enumerate(found):
        if not at or number >> 16 != found[at - 1] >> 16:
            hashes.append(number >> 16)
            offsets.append(at)
    offsets.append(len(found))
    # Of each little-endian number, the second byte and the first one.
    stored = _stored("Q", found)
    pairs = bytearray(2 * len(found))
    pairs[::2], pairs[1::2] = stored[1::8], stored[::8]
    names = list(dict.fromkeys(cut for row in rows if (cut := _encoded(row.name))))
    numbers = {name: number for number, name in enumerate(names, 1)}
    name_bytes = b"".join(struct.pack("<H", len(name)) + name for name in names)
    words = zlib.compress("\n".join(sorted(terms)).encode())
    sizes = len(rows), len(hashes), len(pairs) // 2, len(name_bytes)
    postings = b"".join(
        (
            _HEADER.pack(0, _FORMAT, 0, *sizes, zlib.crc32(words))[_SUM.size :],
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
    return Packed(_SUM.pack(zlib.crc32(postings)) + postings, words)


def _numbers(index: int, counts: Counter[str]) -> list[int]:
    """Return the terms of a row as numbers: CRC-32, row and frequency, in 32, 8 and 8 bits.

    A block may have millions of pairs, for which tuples would need a gigabyte.
    """
    hashed = [(zlib.crc32(term.encode()), count) for term, count in counts.items()]
    by_hash = dict(hashed)
    if len(by_hash) < len(hashed):  # two terms of one CRC-32
        by_hash = dict.fromkeys(by_hash, 0)
        for number, count in hashed:
            by_hash[number] += count
    return [
        number << 16 | index << 8 | min(count, MAX_FREQUENCY) for number, count in by_hash.items()
    ]


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
    """Reads a block. Creating it raises CorruptBlock for bytes that `pack` did not write."""

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
        checksum, format, _, n, k, pairs, name_bytes, of_words = _HEADER.unpack_from(postings)
        if checksum != zlib.crc32(memoryview(postings)[_SUM.size :]):
            raise CorruptBlock("The block is damaged.")
        if format != _FORMAT:
            raise CorruptBlock("The block has another format.")
        if words is not None and of_words != zlib.crc32(words):
            raise CorruptBlock("The words of the block are damaged.")
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
        return data[start:end:2], data[start + 1 : end : 2]

    def find_prefix(self, prefix: str) -> list[str]:
        """Return the terms that begin with a prefix, sorted. Raises ValueError without `words`."""
        if self._words is None:
            raise ValueError("The block was read without its words.")
        words = zlib.decompress(self._words).decode().split("\n")
        found = []
        for n in range(bisect_left(words, prefix), len(words)):
            if not words[n].startswith(prefix):
                break
            found.append(words[n])
        return found


def _names(data: bytes) -> Iterator[str]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        at += 2 + size
        yield data[at - size : at].decode(errors="replace")
