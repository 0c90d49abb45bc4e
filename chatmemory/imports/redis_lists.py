"""Read LangChain's histories from lists of a Redis server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from chatmemory.errors import BadInput, Conflict, MemoryUnavailable
from chatmemory.imports.histories import CHANGED, History, Stored

FORMAT = "langchain-redis"

PAGE = 100
"""Messages that are read at a time."""

TIMEOUT_SECONDS = 30

_GLOB = str.maketrans({char: f"\\{char}" for char in r"\*?[]^-"})


class Lists:
    """Lists whose keys begin with `prefix`, each a history, its newest message first.

    Raises BadInput for a URL that can't be used.
    """

    format = FORMAT

    def __init__(self, url: str, prefix: str) -> None:
        self.prefix = prefix
        try:
            self.client: Any = redis.Redis.from_url(url, socket_timeout=TIMEOUT_SECONDS)
            pool = self.client.connection_pool
            pool.connection_kwargs["decode_responses"] = False  # also if the URL has it
            pool.make_connection()  # which checks the options of the URL
        except (ValueError, TypeError) as error:
            message = (
                "The URL must begin with redis://, rediss:// or unix://, be complete, and have "
                "options of redis-py only."
            )
            raise BadInput(message, field="url") from error

    def histories(self) -> Iterator[History]:
        """Yield the histories, sorted by their keys."""
        pattern = f"{self.prefix.translate(_GLOB)}*"
        with _available():
            keys = {*self.client.scan_iter(pattern, count=1_000, _type="list")}
        for key in sorted(keys):
            name = key.decode(errors="surrogateescape").removeprefix(self.prefix)
            yield History(session_id=name, messages=self._messages(key))

    def _messages(self, key: bytes) -> Iterator[Stored]:
        number = 0
        with _available():
            total = self.client.llen(key)
        while True:
            # From the end, which a new message does not move.
            with _available():
                page = self.client.lrange(key, -number - PAGE, -number - 1)
            for text in reversed(page):
                number += 1
                yield Stored(id=str(number), text=text)
            if len(page) < PAGE:
                break
        if number < total:
            raise Conflict(CHANGED)


@contextmanager
def _available() -> Iterator[None]:
    """Raise MemoryUnavailable for the errors of the client."""
    try:
        yield
    except redis.RedisError as error:
        raise MemoryUnavailable(f"Redis failed: {type(error).__name__}.") from error
