"""Compares the index with the messages, and deletes it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from chatmemory.database.batches import PAGE_ROWS, Progress, in_pages
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import durably
from chatmemory.search.blocks import Packed, pack
from chatmemory.search.models import SearchBlock, first_of
from chatmemory.search.reading import block_rows, indexable
from chatmemory.search.searching import analyzer


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongBlock:
    """A block that is not what the indexer would write."""

    session_pk: int
    low: int
    high: int
    problem: str
    """`other messages` or `other range`."""


def find_wrong_blocks(*, progress: Progress | None = None) -> Iterator[WrongBlock]:
    """Yield the blocks of the current analyzer that differ from their messages.

    Blocks of another analyzer are not used by any search, and not compared.
    Raises MemoryUnavailable.
    """
    blocks = SearchBlock.objects.filter(analyzer=analyzer().name)
    total = durably(blocks.count, is_repeatable=True) if progress else None
    for done, block in enumerate(in_pages(blocks), 1):
        problem = durably(partial(_problem_of, block), is_repeatable=True)
        if problem:
            yield WrongBlock(
                session_pk=block.session_id, low=block.low, high=block.high, problem=problem
            )
        if progress:
            progress(done, total)


def drop_index(*, progress: Progress | None = None) -> int:
    """Delete all blocks in chunks; return their number. Raises MemoryUnavailable."""
    total = durably(SearchBlock.objects.count, is_repeatable=True) if progress else None
    deleted = 0
    while pks := durably(_first_pks, is_repeatable=True):
        durably(partial(_delete, pks), is_repeatable=True)
        deleted += len(pks)
        if progress:
            progress(deleted, total)
    return deleted


def _problem_of(block: SearchBlock) -> str:
    """Return what is wrong with a block, or nothing; also if it was replaced meanwhile."""
    first = first_of(block.number)
    if not first <= block.low <= (block.high or 0) < first_of(block.number + 1):
        return "other range"
    of_range = {"session": block.session_id, "seq__gte": block.low, "seq__lte": block.high}
    packed = pack(block_rows(indexable(**of_range), analyzer()))
    if bytes(block.postings) == packed.postings and _same_words(block, packed):
        return ""
    # A redaction deletes the block first, so an unchanged block means that the messages differ.
    is_there = SearchBlock.objects.filter(pk=block.pk).exists()
    return "other messages" if is_there else ""


def _same_words(block: SearchBlock, packed: Packed) -> bool:
    """Compare what was compressed: another release of zlib compresses it in another way."""
    try:
        return zlib.decompress(bytes(block.words)) == zlib.decompress(packed.words)
    except zlib.error:
        return False


def _first_pks() -> list[int]:
    return list(SearchBlock.objects.order_by("pk").values_list("pk", flat=True)[:PAGE_ROWS])


def _delete(pks: list[int]) -> None:
    with locked_transaction():
        SearchBlock.objects.filter(pk__in=pks).delete()
