"""The format of search blocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory.search.blocks import (
    MAX_LENGTH,
    MAX_ROWS,
    Block,
    BlockRow,
    CorruptBlock,
    Packed,
    minute_of,
    pack,
    term_hash,
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def row(place: int, *terms: str, role: str = "user", name: str | None = None) -> BlockRow:
    return BlockRow(
        place=place,
        role=role,
        name=name,
        created_at=START + timedelta(minutes=place),
        terms=terms,
    )


def opened(packed: Packed) -> Block:
    return Block(packed.postings, packed.words)


def small() -> Packed:
    return pack(
        [
            row(0, "red", "kite", "red", name="Ann"),
            row(3, "kitchen", "red", role="assistant"),
            row(127, "東京", name="Ann"),
        ]
    )


def test_a_block_returns_what_was_packed():
    block = opened(small())
    assert block.count == 3
    assert list(block.minutes) == [minute_of(START) + n for n in (0, 3, 127)]
    assert list(block.lengths) == [3, 2, 1]
    assert list(block.places) == [0, 3, 127]
    assert list(block.is_user) == [1, 0, 1]
    assert (block.names, list(block.name_numbers)) == (("Ann",), [1, 0, 1])
    assert block.find(term_hash("red")) == (bytes([0, 1]), bytes([2, 1]))
    assert block.find(term_hash("東京")) == (bytes([2]), bytes([1]))
    assert block.find(term_hash("blue")) == (b"", b"")


def test_a_prefix_finds_terms_in_order():
    block = opened(small())
    assert block.find_prefix("kit") == ["kitchen", "kite"]
    assert block.find_prefix("東") == ["東京"]
    assert block.find_prefix("zz") == block.find_prefix("redd") == []
    with pytest.raises(ValueError, match="without its words"):
        Block(small().postings).find_prefix("kit")


def test_an_empty_block_and_a_row_without_terms_are_blocks():
    assert opened(pack([])).find_prefix("a") == []
    assert opened(pack([row(5)])).find(1) == (b"", b"")


def test_high_numbers_are_cut():
    block = opened(pack([row(0, *["a"] * (MAX_LENGTH + 5))]))
    assert (list(block.lengths), block.find(term_hash("a"))[1]) == ([MAX_LENGTH], bytes([255]))


def test_terms_of_one_hash_share_their_frequency():
    first, second = "plumless", "buckeroo"  # a known collision of CRC-32
    assert term_hash(first) == term_hash(second)
    block = opened(pack([row(0, first, second, first), row(1, second)]))
    assert block.find(term_hash(first)) == (bytes([0, 1]), bytes([3, 1]))


@pytest.mark.parametrize("places", [range(MAX_ROWS + 1), [1, 0], [2, 2], [256]],
                         ids=["many", "disordered", "equal", "high"])  # fmt: skip
def test_rows_that_do_not_fit_are_refused(places):
    with pytest.raises(ValueError):  # noqa: PT011  # of `bytes`, for the place 256
        pack([row(place) for place in places])


def test_times_before_1970_and_names_of_odd_characters_are_stored():
    rows = [
        BlockRow(
            place=n,
            role="user",
            name=name,
            created_at=datetime(1, 1, 1, tzinfo=UTC),
            terms=["a"],
        )
        for n, name in enumerate(["\x00\n", "\ud800", "é" * 5_000, ""])
    ]
    block = opened(pack(rows))
    assert (list(block.minutes), len(block.names)) == ([0] * 4, 3)
    assert list(block.name_numbers) == [1, 2, 3, 0]
    assert minute_of(datetime.max.replace(tzinfo=UTC)) < 2**32


def test_a_memoryview_is_read_as_bytes_are():
    packed = small()
    block = Block(memoryview(packed.postings), memoryview(packed.words))
    assert block.find_prefix("kit") == ["kitchen", "kite"]


def test_every_truncated_block_is_corrupt():
    packed = small()
    for size in range(len(packed.postings)):
        with pytest.raises(CorruptBlock):
            Block(packed.postings[:size])
    for size in range(len(packed.words)):
        with pytest.raises(CorruptBlock):
            Block(packed.postings, packed.words[:size])


@given(st.binary(max_size=200), st.binary(max_size=60))
def test_random_bytes_are_corrupt(postings, words):
    with pytest.raises(CorruptBlock):
        Block(postings, small().words)
    with pytest.raises(CorruptBlock):
        Block(small().postings, words)


def test_every_flipped_bit_is_corrupt():
    packed = small()
    for at in range(8 * len(packed.postings)):
        with pytest.raises(CorruptBlock):
            Block(flipped(packed.postings, at))
    for at in range(8 * len(packed.words)):
        with pytest.raises(CorruptBlock):
            Block(packed.postings, flipped(packed.words, at))


def flipped(data, at):
    """Return the bytes with another bit `at`."""
    changed = bytearray(data)
    changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abcdefgh"), max_size=8), st.booleans(), st.sampled_from("xyz")
        ),
        max_size=20,
    )
)
def test_any_rows_come_back(rows):
    block = opened(
        pack(
            [
                row(n, *terms, role="user" if is_user else "tool", name=name)
                for n, (terms, is_user, name) in enumerate(rows)
            ]
        )
    )
    for term in "abcdefgh":
        found = dict(zip(*block.find(term_hash(term)), strict=True))
        counts = {n: terms.count(term) for n, (terms, _, _) in enumerate(rows)}
        assert found == {n: count for n, count in counts.items() if count}
    names = [block.names[number - 1] for number in block.name_numbers]
    assert names == [name for _, _, name in rows]
