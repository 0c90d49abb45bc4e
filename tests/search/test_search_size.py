"""How large the index is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.conf import settings

from chatmemory.search.analysis import Analyzer
from chatmemory.search.blocks import BlockRow, pack

MAX_BYTES = 350
"""Bytes of the index for a message of 400 characters."""


@pytest.mark.slow
def test_the_index_of_a_message_is_smaller_than_the_message():
    pages = sorted((settings.BASE_DIR / "docs" / "howto").glob("*.md"))
    text = " ".join(" ".join(page.read_text().split()) for page in pages)
    texts = [text[at : at + 400] for at in range(0, len(text) - 400, 400)]
    assert len(texts) > 512
    sizes = []
    for at in range(0, len(texts) - 128, 128):
        packed = pack([row(place, one) for place, one in enumerate(texts[at : at + 128])])
        sizes.append((len(packed.postings) + len(packed.words)) / 128)
    assert sum(sizes) / len(sizes) <= MAX_BYTES


def row(place: int, text: str) -> BlockRow:
    return BlockRow(
        place=place,
        role="user",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        terms=Analyzer("english").terms(text),
    )
