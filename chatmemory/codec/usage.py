"""The usage that a model reported with a reply, as stored in the column of a turn."""

from __future__ import annotations

from collections.abc import Mapping

from chatmemory.codec.json import parse_json
from chatmemory.errors import BadInput


def parse_usage(text: str) -> Mapping[str, object]:
    """Return the stored usage; empty if there is none or it cannot be read."""
    try:
        usage = parse_json(text, is_ours=True) if text else None
    except BadInput:
        usage = None
    return usage if isinstance(usage, Mapping) else {}


def token_count(usage: Mapping[str, object], name: str) -> int | None:
    """Return the number of tokens that a usage reports under this name."""
    number = usage.get(name)
    return number if isinstance(number, int) else None


def sum_usage(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    """Add the numbers of two usages, also of nested objects; `other` replaces other values."""
    total = {**one, **{name: value for name, value in other.items() if value is not None}}
    for name in one.keys() & other.keys():
        ours, theirs = one[name], other[name]
        if isinstance(ours, int | float) and isinstance(theirs, int | float):
            total[name] = ours + theirs
        elif isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            total[name] = sum_usage(ours, theirs)
    return total
