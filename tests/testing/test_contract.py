"""The contract itself: correct stores pass, and each broken promise is reported with counts."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from django.contrib.auth.models import User
from django.db import connection

from chatmemory.models import AuditEntry, Session, Turn
from chatmemory.models import Message as Row
from chatmemory.testing.base import Contract, new_address, read_back
from chatmemory.testing.contract import Address, MemoryContract, Message, Store, Turns, Violation
from chatmemory.testing.stores import StoreFactory
from chatmemory.testing.workers import WorkerPool
from tests.careless import FAILING_TESTS, factory_of
from tests.conftest import database_environment
from tests.programs.peers.scoreboard import titles

ROOT = Path(__file__).resolve().parents[2]
TESTS = {name.removeprefix("test_") for name in dir(MemoryContract) if name.startswith("test_")}


class Unreadable(Store):
    """A store that cannot read its own data."""

    def read(self, at: Address) -> list[Message]:
        raise ValueError("Extra data")


def test_unreadable_messages_are_counted():
    with pytest.raises(Violation) as caught:
        read_back(Unreadable(), new_address(), 4)
    assert caught.value.counts == {"unreadable": (4, 4)}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Worker processes for the whole module."""
    pool = WorkerPool()
    yield pool
    pool.end()


@pytest.fixture(scope="class")
def kept_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Let the tests of a class write to the database, and delete their rows after the class."""
    with django_db_blocker.unblock():
        yield
        for model in (Row, Turn, AuditEntry, Session, User):
            model._base_manager.all()._raw_delete(using=connection.alias)
        connection.close()


@pytest.fixture(scope="module")
def our_pool(django_db_setup: None) -> Iterator[WorkerPool]:
    """Worker processes on the tests' database; they end before it is dropped."""
    pool = WorkerPool(database_environment(), prepare="tests.opened:prepare")
    yield pool
    pool.end()


@pytest.mark.database
@pytest.mark.filterwarnings("ignore:.*RunnableWithMessageHistory")
class Ours(Contract):
    """The base of the tests of our own memory; they run on each database."""

    make_store = "tests.opened:ours"
    kind: ClassVar[str]
    threads = 6
    batches = 5

    @pytest.fixture(autouse=True)
    def transactional_db(self, kept_database: None) -> None:
        """Replace the fixture of pytest-django, which would empty the database after each test."""

    @pytest.fixture
    def arguments(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @pytest.fixture
    def workers(self, our_pool: WorkerPool) -> WorkerPool:
        return our_pool


@pytest.mark.slow
class TestServices(Ours, MemoryContract):
    kind = "Services"


@pytest.mark.slow
class TestAsyncServices(Ours, MemoryContract):
    kind = "AsyncServices"


class TestHistory(Ours, MemoryContract):
    kind = "History"


@pytest.mark.slow
class TestAsyncHistory(Ours, MemoryContract):
    kind = "AsyncHistory"


@pytest.mark.slow
class TestWithMemory(Ours, Turns):
    kind = "WithMemory"


@pytest.mark.slow
class TestAsyncWithMemory(Ours, Turns):
    kind = "AsyncWithMemory"


class TestShelf(MemoryContract):
    """A store that shares no code with ours."""

    make_store = "tests.shelf:Shelf"

    @pytest.fixture
    def arguments(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "memory")}

    @pytest.fixture
    def workers(self, pool: WorkerPool) -> WorkerPool:
        return pool


def run_test(name: str, factory: StoreFactory, pool: WorkerPool | None = None) -> None:
    """Run one test of the contract. Raises its exception."""
    test = getattr(MemoryContract(), f"test_{name}")
    store = factory.make()
    fixtures: dict[str, Any] = {
        "store": store,
        "factory": factory,
        "at": new_address(),
        "workers": pool,
    }
    for mark in getattr(test, "pytestmark", ()):
        fixtures |= {mark.args[0]: mark.args[1][0]}
    try:
        test(**{parameter: fixtures[parameter] for parameter in inspect.signature(test).parameters})
    finally:
        store.close()


def needs_processes(name: str) -> bool:
    return "workers" in inspect.signature(getattr(MemoryContract, f"test_{name}")).parameters


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        pytest.param(fault, name, marks=[pytest.mark.slow] if needs_processes(name) else [])
        for fault, names in FAILING_TESTS.items()
        for name in sorted(names)
    ],
)
def test_the_contract_fails_for_a_faulty_store(fault, name, tmp_path, request):
    pool = request.getfixturevalue("pool") if needs_processes(name) else None
    with pytest.raises(Violation) as violated:
        run_test(name, factory_of(fault, tmp_path), pool)
    assert all(count > 0 for count, _ in violated.value.counts.values())


def test_each_test_of_the_contract_fails_for_a_faulty_store():
    assert set().union(*FAILING_TESTS.values()) == TESTS


@pytest.mark.slow
def test_the_contract_needs_no_settings_no_models_and_no_langchain():
    """The processes of other stores import it without Django."""
    code = "import sys, chatmemory.testing.contract; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, text=True)  # noqa: S603  # our own command line
    assert done.stderr == ""
    names = done.stdout.split()
    ours = {name for name in names if name.startswith("chatmemory.")}
    assert {name for name in ours if not name.startswith("chatmemory.testing")} == set()
    packages = {name.partition(".")[0] for name in names}
    assert packages & {"django", "langchain_core", "channels", "asgiref", "rest_framework"} == set()


def test_the_page_of_the_contract_describes_each_test():
    page = (ROOT / "docs/reasons/contract.md").read_text()
    assert {title for title in titles().values() if f"- {title}.\n" not in page} == set()
