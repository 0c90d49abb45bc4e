"""The HTML of recently rendered texts, in the memory of the process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

CACHED_CHARS = 4_000_000
"""Maximum characters of HTML that one process caches."""

ENTRY_CHARS = 200
"""Overhead of a cached text, in characters."""


class Cache:
    """Caches HTML by key, and evicts the least recently used.

    Only in memory: a shared cache would keep redacted and erased texts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._html: OrderedDict[Hashable, str] = OrderedDict()
        self._chars = 0

    def get(self, key: Hashable) -> str | None:
        with self._lock:
            html = self._html.get(key)
            if html is not None:
                self._html.move_to_end(key)
            return html

    def put(self, key: Hashable, html: str) -> None:
        """Add the HTML, and evict the least recently used."""
        with self._lock:
            if key in self._html:
                return
            self._html[key] = html
            self._chars += len(html) + ENTRY_CHARS
            while self._chars > CACHED_CHARS:
                self._chars -= len(self._html.popitem(last=False)[1]) + ENTRY_CHARS

    def clear(self) -> None:
        with self._lock:
            self._html.clear()
            self._chars = 0
