"""The requests of this process that wait for the end of a turn: how many, and what wakes them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from chatmemory.conf import settings
from chatmemory.errors import RateLimited

RETRY_SECONDS = 5.0
"""When a client whose wait was refused may try again; how long a turn takes is unknown."""


class Waits:
    """Counts the requests that wait, and wakes them when their session has news."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_person: Counter[str] = Counter()
        self._news: dict[int, set[threading.Event]] = {}

    @contextmanager
    def slot(self, person: str) -> Iterator[None]:
        """Count one request of this person as waiting.

        Raises RateLimited if WAITS_PER_USER or WAITS_PER_PROCESS are waiting.
        """
        with self._lock:
            self._check(person)
            self._of_person[person] += 1
        try:
            yield
        finally:
            with self._lock:
                self._of_person[person] -= 1
                if not self._of_person[person]:
                    del self._of_person[person]

    def _check(self, person: str) -> None:
        per_user, per_process = settings.WAITS_PER_USER, settings.WAITS_PER_PROCESS
        if per_user is not None and self._of_person[person] >= per_user:
            message = "Too many of your requests wait for a reply. Send without wait, or later."
            raise RateLimited(message, retry_after=RETRY_SECONDS)
        if per_process is not None and self._of_person.total() >= per_process:
            message = "Too many requests wait for a reply. Send without wait, or later."
            raise RateLimited(message, retry_after=RETRY_SECONDS)

    @contextmanager
    def news_of(self, session_pk: int) -> Iterator[threading.Event]:
        """An event that each change of this session sets, if this process commits it."""
        news = threading.Event()
        with self._lock:
            self._news.setdefault(session_pk, set()).add(news)
        try:
            yield news
        finally:
            with self._lock:
                waiting = self._news[session_pk]
                waiting.discard(news)
                if not waiting:
                    del self._news[session_pk]

    def wake(self, session_pk: int) -> None:
        """Wake the requests that wait for a turn of this session; from any thread."""
        with self._lock:
            waiting = tuple(self._news.get(session_pk, ()))
        for news in waiting:
            news.set()


waits = Waits()
"""This process's."""
