"""Real processes that write concurrently, one of them killed while it writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import pytest

from chatmemory.models import Message, Session
from chatmemory.testing.stores import StoreFactory
from chatmemory.testing.workers import Refused, Worker, WorkerPool
from tests.conftest import database_environment
from tests.factories import make_session
from tests.writer import MAX_BATCH, Ack, StoredRow, texts_of, violations

pytestmark = [pytest.mark.database, pytest.mark.slow]


class Writers:
    """Processes that append to sessions, and their acknowledged batches."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.running: list[Worker] = []
        self.acks: list[Ack] = []

    def start(
        self, count: int, *, batches: int, keys: Sequence[str], how: str = "services"
    ) -> list[Worker]:
        """Let `count` processes write concurrently."""
        factory = StoreFactory(path="tests.writer:Writer", arguments={"how": how})
        self.running = self.pool.take(count, factory)
        for name, worker in enumerate(self.running):
            calls = [[(f"w{name}", keys[n % len(keys)]), n] for n in range(batches)]
            worker.begin(factory, "write", calls)
        return self.running

    def collect(self, worker: Worker, batches: int | None = None) -> None:
        """Collect the acknowledgements of a worker, at most of `batches` batches."""
        for answer in islice(worker.answers(), batches):
            if isinstance(answer, Refused):
                raise answer
            self.acks.append(Ack(*answer))

    def wait(self) -> None:
        """Collect the acknowledgements of all workers until they end."""
        for worker in self.running:
            self.collect(worker)

    def violations(self) -> set[str]:
        rows: dict[str, list[StoredRow]] = {}
        counters: dict[str, int] = {}
        for session in Session.objects.all():
            stored = Message.stored.filter(session=session).order_by("seq")
            rows[session.key] = [StoredRow(*row) for row in stored.values_list("seq", "text")]
            counters[session.key] = session.last_seq
        return violations(rows, counters, self.acks)


@pytest.fixture(scope="module")
def pool(django_db_setup: None) -> Iterator[WorkerPool]:
    """Yield processes for the module; end them before the database is dropped."""
    pool = WorkerPool(database_environment(), prepare="tests.writer:prepare")
    yield pool
    pool.end()


@pytest.fixture
def writers(transactional_db: None, pool: WorkerPool) -> Writers:
    return Writers(pool)


def open_sessions(count: int) -> list[str]:
    return [make_session(f"s{number}").key for number in range(count)]


def messages_of(batches: int) -> int:
    return sum(len(texts_of("w", number)) for number in range(batches))


@pytest.mark.parametrize("sessions", [1, 64])
def test_the_rows_of_eight_processes_have_no_violation(writers, sessions):
    keys = open_sessions(sessions)
    writers.start(8, batches=64, keys=keys)
    writers.wait()
    assert writers.violations() == set()
    assert len(writers.acks) == 8 * 64
    assert Message.stored.count() == 8 * messages_of(64)


def test_a_writer_that_is_killed_and_restarted_stores_each_batch_once(writers):
    keys = open_sessions(2)
    killed, *others = writers.start(4, batches=60, keys=keys)
    writers.collect(killed, batches=20)
    writers.pool.kill(killed)
    writers.collect(killed)
    assert len(writers.acks) < 60
    for worker in others:
        writers.collect(worker)
    writers.start(1, batches=60, keys=keys)
    writers.wait()
    assert writers.violations() == set()
    assert {ack.client_id for ack in writers.acks} == {
        f"w{name}.{number}" for name in range(4) for number in range(60)
    }
    assert Message.stored.count() == 4 * messages_of(60)


@pytest.mark.parametrize(
    ("how", "violation"),
    [("unlocked", "split"), ("rewriting", "lost"), ("retrying", "doubled")],
)
def test_the_check_finds_the_violations_of_unsafe_writers(writers, how, violation):
    for key in open_sessions(5):  # whether two of them conflict is random
        writers.start(3, batches=4 * MAX_BATCH, keys=[key], how=how)
        writers.wait()
        if violation in writers.violations():
            return
    pytest.fail(f"not found: {violation}")


A_BATCH = [StoredRow(1, "w0.2.0"), StoredRow(2, "w0.2.1"), StoredRow(3, "w0.2.2")]


@pytest.mark.parametrize(
    ("rows", "counter", "ack", "expected"),
    [
        (A_BATCH, 3, (1, 3), set()),
        (A_BATCH, 3, (2, 4), {"lost"}),
        (A_BATCH[:2], 2, (1, 3), {"lost"}),
        (A_BATCH, 4, (1, 3), {"counter"}),
        ([*A_BATCH, StoredRow(5, "w1.0.0")], 4, (1, 3), {"gap"}),
        ([*A_BATCH, StoredRow(4, "w0.0.0")], 4, (1, 3), {"misordered"}),
        ([*A_BATCH, StoredRow(4, "w1.0.0"), StoredRow(5, "w1.0.0")], 5, (1, 3), {"doubled"}),
        (
            [
                *A_BATCH,
                *(StoredRow(4 + n, t) for n, t in enumerate(["w1.1.0", "w2.0.0", "w1.1.1"])),
            ],
            6,
            (1, 3),
            {"split"},
        ),
    ],
    ids=["right", "elsewhere", "partly", "counter", "gap", "misordered", "doubled", "split"],
)
def test_the_check_finds_each_violation(rows, counter, ack, expected):
    acks = [Ack("s0", "w0.2", *ack)]
    assert violations({"s0": rows}, {"s0": counter}, acks) == expected
