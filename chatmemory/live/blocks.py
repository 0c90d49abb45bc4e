"""The finished blocks of a streamed text as HTML, rendered once for all sockets that show them."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from django.conf import settings
from django.utils import translation

from chatmemory.logs import log_error
from chatmemory.rendering.markdown import MarkdownStream
from chatmemory.rendering.text import MAX_MARKDOWN_CHARS, has_markup
from chatmemory.responders import Progress

RENDER_THREADS = 2
"""Threads that render blocks, each person's for at most `budget.PERSON_SECONDS` of a minute."""
MAX_HTML_CHARS = 64 * 1024
"""Longest HTML of one frame. A text with a longer block has no further blocks."""
MAX_TAG_CHARS = 35
"""Longest language tag that is looked up (RFC 5646, 4.4.1)."""
PREFIX = "live-"
"""Begins the ids of footnotes, since the number of the message is not known yet."""
# Note [Live blocks]
#
# The HTML of a growing text is the beginning of the HTML of the stored text. So a page shows each
# block once, and never replaces it.
# - `MarkdownStream` parses each line once, in a thread: neither a tick nor a socket waits for it.
# - Each process renders the texts that its sockets show, also mirrors. All sockets with the same
#   language share the blocks.
# - Only notes (link definitions and footnotes) change blocks before them. `complete` then returns
#   False, and the page loads the HTML of the whole message.

_LINE = re.compile(r"[^\n]*\n|[^\n]+")

logger = logging.getLogger(__name__)


class Pieces(Protocol):
    """The part of `LiveText` that is rendered."""

    @property
    def pieces(self) -> Sequence[str | Progress]: ...
    @property
    def published(self) -> int: ...


class LiveBlock(NamedTuple):
    """HTML of a text up to a position, without the HTML of earlier blocks."""

    end: int
    """The position in the text, in characters."""
    html: str


class LiveBlocks:
    """The blocks of one text in one language. Any thread may call the methods."""

    def __init__(
        self, text: Pieces, language: str, notify: Callable[[], object], person: Hashable = None
    ) -> None:
        """`notify` is called in another thread when there are new blocks."""
        self.blocks: list[LiveBlock] = []
        self.frames: dict[tuple[int, int], str] = {}
        """The last frames that sockets sent, by first and last block."""
        self._text = text
        self._language = language
        self._notify = notify
        self._stream = MarkdownStream(prefix=PREFIX, person=person)
        self._lock = threading.Lock()
        """Locked while something is rendered."""
        self._source = ""
        """The text that was rendered."""
        self._read_pieces = 0
        self._searched_pieces = 0
        self._is_scheduled = False
        self._is_over = False
        """Whether no further block is rendered: the text has ended, or exceeds a limit."""
        self._is_complete: bool | None = None
        """Whether the blocks are the whole stored text; None before its end."""

    def update(self) -> None:
        """Render the blocks that have ended, soon and in another thread."""
        if self._is_scheduled or self._is_over or not self._has_new_line():
            return
        self._is_scheduled = True
        _threads.submit(self._render)

    def complete(self, text: str) -> bool:
        """Render the rest of the stored text; return whether the blocks are its HTML.

        The answer to further calls is the same.
        """
        with self._lock:
            if self._is_complete is None:
                try:
                    self._is_complete = self._add_end(text)
                except Exception as error:  # the page loads the whole message
                    self._is_complete = False
                    log_error(logger, "the end of a streamed text cannot be rendered", error=error)
                self._is_over = True
            return self._is_complete

    async def acomplete(self, text: str) -> bool:
        return await asyncio.get_running_loop().run_in_executor(_threads, self.complete, text)

    def _has_new_line(self) -> bool:
        """Whether new pieces end a line: only then can a block have ended."""
        begin, end = self._searched_pieces, self._text.published
        self._searched_pieces = end
        new = self._text.pieces[begin:end]
        return any(isinstance(piece, str) and ("\n" in piece or "\r" in piece) for piece in new)

    def _render(self) -> None:
        # First: pieces that arrive from now on schedule another call.
        self._is_scheduled = False
        with self._lock:
            count = len(self.blocks)
            try:
                self._add_pieces()
            except Exception as error:  # the sockets still get the text
                self._is_over = True
                log_error(logger, "blocks of a streamed text cannot be rendered", error=error)
            is_changed = len(self.blocks) > count
        if is_changed:
            self._notify()

    def _add_pieces(self) -> None:
        if self._is_over:
            return
        begin, end = self._read_pieces, self._text.published
        new = self._text.pieces[begin:end]
        self._read_pieces = end
        self._add_text("".join(piece for piece in new if isinstance(piece, str)))

    def _add_text(self, text: str) -> None:
        if len(self._source) + len(text) > MAX_MARKDOWN_CHARS:
            self._is_over = True  # the stored text is not rendered either
            return
        self._source += text
        with translation.override(self._language):
            for line in _LINE.findall(text):
                self._add_block("".join(self._stream.feed(line)))

    def _add_block(self, html: str) -> None:
        if len(html) > MAX_HTML_CHARS:
            self._is_over = True
        if self._is_over:
            return
        if html:
            self.blocks.append(LiveBlock(self._stream.closed_chars, html))
            self.frames = {}

    def _add_end(self, text: str) -> bool:
        if self._is_over or not has_markup(text) or not text.startswith(self._source):
            return False
        self._add_text(text[len(self._source) :])
        with translation.override(self._language):
            self._add_block("".join(self._stream.close()))
            is_limited: bool = self._is_over
            if is_limited or self._stream.has_notes:
                return False
            self._stream.remember(text, "".join(block.html for block in self.blocks))
        return True


def language_of(tag: str) -> str:
    """Return the language of this project for a language tag; the default for an unknown one."""
    try:
        return translation.get_supported_language_variant(tag[:MAX_TAG_CHARS])
    except LookupError:
        return settings.LANGUAGE_CODE


_threads = ThreadPoolExecutor(RENDER_THREADS, thread_name_prefix="chatmemory-blocks")
