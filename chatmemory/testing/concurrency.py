"""Concurrent writers: threads or coroutines, and processes, some of which are killed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, compress, islice, pairwise
from typing import Any

from chatmemory.testing.base import (
    Contract,
    make_messages,
    needs,
    new_address,
    pairs,
    read_back,
    texts,
)
from chatmemory.testing.models import DEADLINE_SECONDS, reply_to
from chatmemory.testing.stores import Address, Store, StoreFactory, in_thread
from chatmemory.testing.violations import (
    check,
    check_same,
    doubled,
    foreign,
    misordered_within,
    missing,
    split,
)
from chatmemory.testing.workers import Refused, WorkerPool

KILLED_AFTER = 3
"""Acknowledged batches after which a writer is killed."""


class ConcurrentWriters(Contract):
    """The promises for concurrent writers."""

    def test_threads_lose_nothing(self, store: Store, at: Address) -> None:
        """Threads, or coroutines, that write to one session lose nothing."""
        batches = [pairs(writer, self.batches) for writer in range(self.threads)]
        refused = 0
        for number in range(self.batches):
            calls = [(at, make_messages(*own[number])) for own in batches]
            results = store.call_concurrently("append", calls)
            refused += sum(isinstance(result, Exception) for result in results)
        check_written(texts(store.read(at)), batches, refused)

    def test_threads_stay_in_their_sessions(self, store: Store) -> None:
        """Threads, or coroutines, that write to separate sessions stay in them."""
        addresses = [new_address(f"user{n}") for n in range(self.threads)]
        for number in range(3):
            batch = [f"{number}.0", f"{number}.1"]
            calls = [
                (at, make_messages(*(f"{n}.{text}" for text in batch)))
                for n, at in enumerate(addresses)
            ]
            check_refused(store.call_concurrently("append", calls))
        found = [texts(store.read(at)) for at in addresses]
        expected = [list(chain(*pairs(n, 3))) for n in range(self.threads)]
        others = sum(foreign(*pair) for pair in zip(found, expected, strict=True))
        check(of_others=(others, sum(map(len, found))))
        for own, wanted in zip(found, expected, strict=True):
            check_same(own, wanted)

    @needs("append_once")
    def test_concurrent_retries_are_stored_once(self, store: Store, at: Address) -> None:
        """Concurrent repeats of a write are stored once."""
        for number in range(3):
            batch = make_messages(f"{number}.0", f"{number}.1")
            calls = [(at, batch, f"write-{number}") for _ in range(self.threads)]
            check_refused(store.call_concurrently("append_once", calls))
        check_same(texts(store.read(at)), list(chain(*pairs_of(3))))

    def test_processes_lose_nothing(
        self, store: Store, factory: StoreFactory, at: Address, workers: WorkerPool
    ) -> None:
        """Processes that write to one session lose, duplicate and misorder nothing."""
        batches, refused = self.written_by_processes(factory, at, workers)
        check_written(read_back(store, at, 2 * sum(map(len, batches))), batches, refused)

    def test_processes_split_no_batch(
        self, store: Store, factory: StoreFactory, at: Address, workers: WorkerPool
    ) -> None:
        """A question and its answer, written together, stay together."""
        batches, _ = self.written_by_processes(factory, at, workers)
        stored = list(chain(*batches))
        check(split=(split(texts(store.read(at)), stored), len(stored)))

    def test_rows_that_were_read_never_change(
        self, store: Store, factory: StoreFactory, at: Address, workers: WorkerPool
    ) -> None:
        """While others write, a reader sees new messages only at the end."""
        store.append(at, make_messages("first", "second"))
        reads: list[list[str]] = []
        with reading(store, at, reads):
            self.written_by_processes(factory, at, workers)
        changed = sum(later[: len(earlier)] != earlier for earlier, later in pairwise(reads))
        check(rewritten=(changed, len(reads)))

    def test_a_killed_writer_loses_no_acknowledged_batch(
        self, store: Store, factory: StoreFactory, at: Address, workers: WorkerPool
    ) -> None:
        """If a writer is killed, all acknowledged batches are stored, and no partial batch."""
        (worker,) = workers.take(1, factory)
        batches = pairs(0, 2_000)
        worker.begin(factory, "append", [[at, make_messages(*batch)] for batch in batches])
        answers = worker.answers()
        results = list(islice(answers, KILLED_AFTER))
        workers.kill(worker)
        results += answers  # those that it had sent before the kill
        found = read_back(store, at, 2 * len(results))
        # The writer answers in order, so the batches without a result are the last.
        acknowledged = [
            batch
            for batch, result in zip(batches, results, strict=False)
            if not isinstance(result, Refused)
        ]
        expected = list(chain(*acknowledged))
        check(
            lost=(missing(found, expected), len(expected)),
            doubled=(doubled(found, list(chain(*batches))), len(found)),
            half=(len(found) % 2, len(found)),
        )

    @needs("turn")
    def test_turns_of_processes_lose_nothing(
        self, store: Store, factory: StoreFactory, at: Address, workers: WorkerPool
    ) -> None:
        """Turns that processes run in one session lose nothing."""
        pool = workers.take(self.processes, factory)
        questions = [[f"{n}.{number}" for number in range(4)] for n in range(len(pool))]
        for worker, own in zip(pool, questions, strict=True):
            worker.begin(factory, "turn", [[at, text, "ponder"] for text in own])
        answers = list(chain(*(worker.answers() for worker in pool)))
        expected = [
            text
            for question, answer in zip(chain(*questions), answers, strict=True)
            if not isinstance(answer, Refused)
            for text in (question, reply_to(question))
        ]
        found = read_back(store, at, len(expected))
        refused = sum(isinstance(answer, Refused) for answer in answers)
        check(
            lost=(missing(found, expected), len(expected)),
            doubled=(doubled(found, expected), len(expected)),
            refused=(refused, len(answers)),
        )

    def written_by_processes(
        self, factory: StoreFactory, at: Address, workers: WorkerPool
    ) -> tuple[list[list[list[str]]], int]:
        """Let processes append concurrently.

        Return the acknowledged batches of each process, and the number of refused ones.
        """
        pool = workers.take(self.processes, factory)
        batches = [pairs(writer, self.batches) for writer in range(len(pool))]
        for worker, own in zip(pool, batches, strict=True):
            worker.begin(factory, "append", [[at, make_messages(*batch)] for batch in own])
        stored: list[list[list[str]]] = []
        refused = 0
        for worker, own in zip(pool, batches, strict=True):
            is_stored = [not isinstance(answer, Refused) for answer in worker.answers()]
            stored.append(list(compress(own, is_stored)))
            refused += is_stored.count(False)
        return stored, refused


def pairs_of(count: int) -> list[list[str]]:
    """Return batches whose texts name no writer, each a question and an answer."""
    return [[f"{number}.0", f"{number}.1"] for number in range(count)]


def check_refused(results: Sequence[object]) -> None:
    """Check that no result of concurrent calls is an exception."""
    check(refused=(sum(isinstance(result, Exception) for result in results), len(results)))


def check_written(
    found: Sequence[str], batches: Sequence[Sequence[Sequence[str]]], refused: int
) -> None:
    """Check that all acknowledged texts are stored, and ascending for each writer."""
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
    """Read a session repeatedly in another thread until the block ends."""
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
