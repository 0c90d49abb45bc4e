"""Count the differences between stored and expected messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


class Violation(AssertionError):
    """A broken promise: for each kind, the number of violations and the number of cases."""

    def __init__(self, counts: dict[str, tuple[int, int]]) -> None:
        super().__init__(", ".join(f"{n} of {of} {kind}" for kind, (n, of) in counts.items()))
        self.counts = counts


def check(**counts: tuple[int, int]) -> None:
    """Raise Violation for the kinds whose number of violations is not 0."""
    found = {kind.replace("_", " "): count for kind, count in counts.items() if count[0]}
    if found:
        raise Violation(found)


def check_same(found: Sequence[T], expected: Sequence[T]) -> None:
    """Check that a session contains exactly the expected items in order. Raises Violation."""
    of = len(expected)
    check(
        lost=(missing(found, expected), of),
        doubled=(doubled(found, expected), of),
        foreign=(foreign(found, expected), len(found)),
        misordered=(misordered(found, expected), of),
    )


def missing(found: Iterable[T], expected: Iterable[T]) -> int:
    """Count the expected items that are missing."""
    return sum((Counter(expected) - Counter(found)).values())


def doubled(found: Iterable[T], expected: Iterable[T]) -> int:
    """Count the surplus copies of expected items."""
    wanted = Counter(expected)
    return sum(n for item, n in (Counter(found) - wanted).items() if item in wanted)


def foreign(found: Iterable[T], expected: Iterable[T]) -> int:
    """Count the items that are not expected."""
    wanted = set(expected)
    return sum(item not in wanted for item in found)


def misordered(found: Iterable[T], expected: Iterable[T]) -> int:
    """Count the items that follow an item that they should precede."""
    indexes = {item: index for index, item in enumerate(expected)}
    furthest, count = -1, 0
    for item in found:
        index = indexes.get(item, furthest)
        count += index < furthest
        furthest = max(furthest, index)
    return count


def misordered_within(found: Iterable[tuple[int, ...]]) -> int:
    """Count the misordered items of each writer; an item begins with its writer's number."""
    groups: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for item in found:
        groups[item[0]].append(item)
    return sum(misordered(group, sorted(group)) for group in groups.values())


def split(found: Sequence[T], batches: Iterable[Sequence[T]]) -> int:
    """Count the complete batches whose items are not adjacent."""
    indexes = {item: index for index, item in enumerate(found)}
    return sum(
        [indexes[item] for item in batch]
        != list(range(indexes[batch[0]], indexes[batch[0]] + len(batch)))
        for batch in batches
        if all(item in indexes for item in batch)
    )
