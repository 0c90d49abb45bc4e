"""Server-sent events."""

from __future__ import annotations

from collections.abc import Iterable

from chatmemory import codec
from chatmemory.streams.replies import Data


def data_events(objects: Iterable[Data]) -> str:
    """Return JSON objects as events without names."""
    return "".join(f"data: {codec.dump_json(each)}\n\n" for each in objects)
