"""What is wrong with a memory, counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


class Violation(AssertionError):
    """A promise was not kept: by kind, how many, and of how many."""

    def __init__(self, counts: dict[str, tuple[int, int]]) -> None:
        super().__init__(", ".join(f"{n} of {of} {kind}" for kind, (n, of) in counts.items()))
        self.counts = counts


def check(**counts: tuple[int, int]) -> None:
    """Raises Violation, with each kind of which there is more than none."""
    found = {kind.replace("_", " "): count for kind, count in counts.items() if count[0]}
    if found:
        raise Violation(found)


def check_same(found: Sequence[T], expected: Sequence[T]) -> None:
    """See that a session holds just these, in this order. Raises Violation."""
    of = len(expected)
    check(
        lost=(missing(found, expected), of),
        doubled=(doubled(found, expected), of),
        foreign=(foreign(found, expected), len(found)),
        misordered=(misordered(found, expected), of),
    )


def missing(found: Iterable[T], expected: Iterable[T]) -> int:
    """How many of those expected aren't there."""
    return sum((Counter(expected) - Counter(found)).values())


def doubled(found: Iterable[T], expected: Iterable[T]) -> int:
    """How many of those expected are there too often."""
    wanted = Counter(expected)
    return sum(n for item, n in (Counter(found) - wanted).items() if item in wanted)


def foreign(found: Iterable[T], expected: Iterable[T]) -> int:
    """How many are there that nobody put there."""
    wanted = set(expected)
    return sum(item not in wanted for item in found)


def misordered(found: Iterable[T], expected: Iterable[T]) -> int:
    """How many stand behind one that they should stand before."""
    places = {item: place for place, item in enumerate(expected)}
    furthest, count = -1, 0
    for item in found:
        place = places.get(item, furthest)
        count += place < furthest
        furthest = max(furthest, place)
    return count


def misordered_within(found: Iterable[tuple[int, ...]]) -> int:
    """The same for each writer's own, whatever stands between them; its number comes first."""
    groups: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for item in found:
        groups[item[0]].append(item)
    return sum(misordered(group, sorted(group)) for group in groups.values())


def split(found: Sequence[T], batches: Iterable[Sequence[T]]) -> int:
    """How many batches, of those that are there, don't lie together."""
    places = {item: place for place, item in enumerate(found)}
    return sum(
        [places[item] for item in batch]
        != list(range(places[batch[0]], places[batch[0]] + len(batch)))
        for batch in batches
        if all(item in places for item in batch)
    )
