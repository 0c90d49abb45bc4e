"""Many at once: threads or coroutines, and processes, some of them killed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from typing import Any

from chatmemory.testing.base import Contract, needs, new_address, pairs, read_back, said, texts
from chatmemory.testing.models import DEADLINE_SECONDS, reply_to
from chatmemory.testing.stores import Address, Recipe, Store, in_thread
from chatmemory.testing.violations import (
    check,
    check_same,
    doubled,
    foreign,
    misordered_within,
    missing,
    split,
)
from chatmemory.testing.workers import Crew, Refused

KILLED_AFTER = 3
"""How many of its batches a writer is told to be stored before it is killed."""


class AtOnce(Contract):
    """What holds where many write."""

    def test_threads_lose_nothing(self, store: Store, at: Address) -> None:
        """Threads, or coroutines, that write to one session lose nothing."""
        batches = [pairs(writer, self.batches) for writer in range(self.threads)]
        refused = 0
        for number in range(self.batches):
            calls = [(at, said(*batches[writer][number])) for writer in range(self.threads)]
            refused += sum(isinstance(done, Exception) for done in store.at_once("append", calls))
        check_written(texts(store.read(at)), batches, refused)

    def test_threads_stay_in_their_sessions(self, store: Store) -> None:
        """Threads, or coroutines, that write to sessions of their own stay in them."""
        addresses = [new_address(f"user{n}") for n in range(self.threads)]
        for number in range(3):
            batch = [f"{number}.0", f"{number}.1"]
            done = store.at_once(
                "append",
                [(at, said(*(f"{n}.{text}" for text in batch))) for n, at in enumerate(addresses)],
            )
            check(refused=(sum(isinstance(one, Exception) for one in done), len(done)))
        found = [texts(store.read(at)) for at in addresses]
        expected = [list(chain(*pairs(n, 3))) for n in range(self.threads)]
        others = sum(foreign(*both) for both in zip(found, expected, strict=True))
        check(of_others=(others, sum(map(len, found))))
        for own, wanted in zip(found, expected, strict=True):
            check_same(own, wanted)

    @needs("append_once")
    def test_a_retry_at_the_same_time_is_stored_once(self, store: Store, at: Address) -> None:
        """The same write many times at once is stored once."""
        for number in range(3):
            batch = said(f"{number}.0", f"{number}.1")
            calls = [(at, batch, f"write-{number}") for _ in range(self.threads)]
            done = store.at_once("append_once", calls)
            check(refused=(sum(isinstance(one, Exception) for one in done), len(done)))
        check_same(texts(store.read(at)), list(chain(*pairs_of(3))))

    def test_processes_lose_nothing(
        self, store: Store, recipe: Recipe, at: Address, workers: Crew
    ) -> None:
        """Processes that write to one session lose, double, misorder nothing."""
        batches, refused = self.written_by_processes(recipe, at, workers)
        of = 2 * sum(map(len, batches))
        check_written(read_back(store, at, of), batches, refused)

    def test_processes_split_no_batch(
        self, store: Store, recipe: Recipe, at: Address, workers: Crew
    ) -> None:
        """A question and its answer, written together, lie together."""
        batches, _ = self.written_by_processes(recipe, at, workers)
        stored = list(chain(*batches))
        check(split=(split(texts(store.read(at)), stored), len(stored)))

    def test_what_was_read_never_changes(
        self, store: Store, recipe: Recipe, at: Address, workers: Crew
    ) -> None:
        """While others write, a reader sees new messages at the end only."""
        store.append(at, said("first", "second"))
        reads: list[list[str]] = []
        with reading(store, at, reads):
            self.written_by_processes(recipe, at, workers)
        changed = sum(later[: len(earlier)] != earlier for earlier, later in pairwise(reads))
        check(rewritten=(changed, len(reads)))

    def test_a_killed_writer_loses_nothing_that_it_was_told(
        self, store: Store, recipe: Recipe, at: Address, workers: Crew
    ) -> None:
        """Of a writer killed in the middle, what was acknowledged is there, and no half batch."""
        (worker,) = workers.take(1, recipe)
        batches = pairs(0, 2_000)
        worker.begin(recipe, "append", [[at, said(*batch)] for batch in batches])
        answers = worker.answers()
        told = list(islice(answers, KILLED_AFTER))
        workers.kill(worker)
        told += answers
        found = read_back(store, at, 2 * len(told))
        both = zip(batches, told, strict=False)
        expected = list(chain(*(batch for batch, one in both if not isinstance(one, Refused))))
        check(
            lost=(missing(found, expected), len(expected)),
            doubled=(doubled(found, list(chain(*batches))), len(found)),
            half=(len(found) % 2, len(found)),
        )

    @needs("turn")
    def test_turns_of_processes_lose_nothing(
        self, store: Store, recipe: Recipe, at: Address, workers: Crew
    ) -> None:
        """Turns that processes run in one session lose nothing."""
        crew = workers.take(self.processes, recipe)
        asked = [[f"{n}.{number}" for number in range(4)] for n in range(len(crew))]
        for worker, own in zip(crew, asked, strict=True):
            worker.begin(recipe, "turn", [[at, text, "ponder"] for text in own])
        answers = [list(worker.answers()) for worker in crew]
        expected = [
            text
            for own, told in zip(asked, answers, strict=True)
            for question, answer in zip(own, told, strict=True)
            if not isinstance(answer, Refused)
            for text in (question, reply_to(question))
        ]
        found = read_back(store, at, len(expected))
        refused = sum(isinstance(one, Refused) for told in answers for one in told)
        check(
            lost=(missing(found, expected), len(expected)),
            doubled=(doubled(found, expected), len(expected)),
            refused=(refused, sum(map(len, answers))),
        )

    def written_by_processes(
        self, recipe: Recipe, at: Address, workers: Crew
    ) -> tuple[list[list[list[str]]], int]:
        """The batches that processes were told are stored, and how often they were refused."""
        crew = workers.take(self.processes, recipe)
        batches = [pairs(writer, self.batches) for writer in range(len(crew))]
        for worker, own in zip(crew, batches, strict=True):
            worker.begin(recipe, "append", [[at, said(*batch)] for batch in own])
        stored: list[list[list[str]]] = []
        refused = 0
        for worker, own in zip(crew, batches, strict=True):
            answers = list(worker.answers())
            told = [not isinstance(answer, Refused) for answer in answers]
            stored.append([batch for batch, done in zip(own, told, strict=True) if done])
            refused += told.count(False)
        return stored, refused


def pairs_of(count: int) -> list[list[str]]:
    """Batches without the name of a writer."""
    return [[f"{number}.0", f"{number}.1"] for number in range(count)]


def check_written(
    found: Sequence[str], batches: Sequence[Sequence[Sequence[str]]], refused: int
) -> None:
    """See that a session holds what its writers were told, each one's in order."""
    expected = list(chain(*chain(*batches)))
    known = set(expected)
    numbers = [tuple(map(int, text.split("."))) for text in found if text in known]
    check(
        lost=(missing(found, expected), len(expected)),
        doubled=(doubled(found, expected), len(expected)),
        misordered=(misordered_within(numbers), len(numbers)),
        refused=(refused, len(expected) // 2 + refused),
    )


@contextmanager
def reading(store: Store, at: Address, reads: list[list[str]]) -> Iterator[None]:
    """Read a session over and over, as long as the block lasts."""
    is_over = False

    def read() -> None:
        while not is_over:
            reads.append(texts(store.read(at)))
            time.sleep(0.001)

    done: Any = in_thread(store, read)
    try:
        yield
    finally:
        is_over = True
        done.result(DEADLINE_SECONDS)
    reads.append(texts(store.read(at)))
