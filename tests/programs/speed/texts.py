"""The messages of the benchmark, and the check that exactly they were stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from chatmemory.models import Message, Session

USER_CHARS, REPLY_CHARS = 200, 600
FILLED = -1
"""The index of batches that no call stores."""
FILL_SIZE = 100
"""Messages that one call stores to fill a session."""
MAX_NAMED = 3
"""Examples in the description of a fault."""

Batch = tuple[str, ...]
"""The texts of messages that are stored together: user, assistant, user and so on."""


def batch_of(index: int, number: int, size: int = 2) -> Batch:
    """Return the texts of call `number` of process `index`, all different."""
    return tuple(
        f"{index}.{number}.{place} ".ljust(REPLY_CHARS if place % 2 else USER_CHARS, "x")
        for place in range(size)
    )


def batches_of(calls: Sequence[int], size: int = 2) -> list[Batch]:
    """Return the batches of all calls."""
    return [batch_of(i, number, size) for i, count in enumerate(calls) for number in range(count)]


def filled(messages: int) -> list[Batch]:
    """Return the batches that fill a session with this number of messages, a multiple of 100."""
    return [batch_of(FILLED, number, FILL_SIZE) for number in range(messages // FILL_SIZE)]


def role_of(place: int) -> str:
    return "assistant" if place % 2 else "user"


def plain(batch: Batch) -> list[dict[str, object]]:
    """Return a batch as plain messages."""
    return [{"role": role_of(place), "content": text} for place, text in enumerate(batch)]


def find_faults(session_key: str, expected: Iterable[Batch], size: int = 2) -> list[str]:
    """Compare a session with the batches that were stored: rows, order, numbers, counters."""
    session = Session.objects.get(key=session_key)
    rows = list(
        Message.stored.filter(session=session).order_by("seq").values_list("seq", "text", "tokens")
    )
    found = Counter(
        tuple(text for _, text, _ in rows[at : at + size]) for at in range(0, len(rows), size)
    )
    wanted = Counter(expected)
    # A batch that was split by another one is both missing and unknown.
    faults = {
        "lost": wanted - found,
        "duplicate": Counter({batch: n - 1 for batch, n in found.items() if n > 1}),
        "interleaved or changed": Counter(found.keys() - wanted.keys()),
    }
    named = [
        f"{sum(batches.values())} batches {what}: "
        + ", ".join(repr(batch[0].split(" ")[0]) for batch in list(batches)[:MAX_NAMED])
        for what, batches in faults.items()
        if batches
    ]
    if [seq for seq, _, _ in rows] != list(range(1, len(rows) + 1)):
        named.append("the numbers of the rows have gaps")
    if session.last_seq != len(rows):
        named.append(f"last_seq is {session.last_seq}, but there are {len(rows)} rows")
    tokens = sum(tokens for _, _, tokens in rows)
    if session.tokens != tokens:
        named.append(f"the session counts {session.tokens} tokens, its rows {tokens}")
    return named
