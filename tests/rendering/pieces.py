"""Markdown that arrives in pieces."""

from __future__ import annotations

import random

from chatmemory.rendering.markdown import MarkdownStream


def streamed(text: str, pieces: random.Random) -> str:
    """Return the blocks of a text that arrives in pieces of random lengths."""
    stream = MarkdownStream()
    blocks = []
    while text:
        length = pieces.randint(1, 8)
        blocks += stream.feed(text[:length])
        text = text[length:]
    return "".join(blocks + stream.close())
