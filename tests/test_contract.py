"""The contract itself: it passes what is right, and tells what is wrong and how much."""

from __future__ import annotations

import inspect
import json
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
from chatmemory.testing.stores import Recipe
from chatmemory.testing.workers import Crew
from tests.careless import RED, recipe
from tests.conftest import database_environment
from tests.peers.scoreboard import cells_of, table, titles

ROOT = Path(__file__).resolve().parent.parent
TESTS = {name.removeprefix("test_") for name in dir(MemoryContract) if name.startswith("test_")}


class Unreadable(Store):
    """One whose reader stumbles over what was written."""

    def read(self, at: Address) -> list[Message]:
        raise ValueError("Extra data")


def test_what_can_not_be_read_back_is_counted():
    with pytest.raises(Violation) as caught:
        read_back(Unreadable(), new_address(), 4)
    assert caught.value.counts == {"unreadable": (4, 4)}


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Processes for the whole module."""
    crew = Crew()
    yield crew
    crew.end()


@pytest.fixture(scope="class")
def kept_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The tests of a class write to the database; what they leave is deleted at the end."""
    with django_db_blocker.unblock():
        yield
        for model in (Row, Turn, AuditEntry, Session, User):
            model._base_manager.all()._raw_delete(using=connection.alias)
        connection.close()


@pytest.fixture(scope="module")
def our_crew(django_db_setup: None) -> Iterator[Crew]:
    """Processes of the project on the tests' database, ended before that is dropped."""
    crew = Crew(database_environment(), prepare="tests.opened:prepare")
    yield crew
    crew.end()


@pytest.mark.database
@pytest.mark.filterwarnings("ignore:.*RunnableWithMessageHistory")
class Ours(Contract):
    """Our own, each form of it, on each database."""

    make_store = "tests.opened:ours"
    kind: ClassVar[str]
    threads = 6
    batches = 5

    @pytest.fixture(autouse=True)
    def transactional_db(self, kept_database: None) -> None:
        """In place of that of pytest-django, which would empty the database after each test."""

    @pytest.fixture
    def arguments(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @pytest.fixture
    def workers(self, our_crew: Crew) -> Crew:
        return our_crew


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
    """A store of somebody else's, held to the contract."""

    make_store = "tests.shelf:Shelf"

    @pytest.fixture
    def arguments(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "memory")}

    @pytest.fixture
    def workers(self, crew: Crew) -> Crew:
        return crew


def hold(name: str, made: Recipe, crew: Crew | None = None) -> None:
    """Run one test of the contract. Raises what it does."""
    test = getattr(MemoryContract(), f"test_{name}")
    store = made.make()
    given: dict[str, Any] = {"store": store, "recipe": made, "at": new_address(), "workers": crew}
    for mark in getattr(test, "pytestmark", ()):
        given |= {mark.args[0]: mark.args[1][0]}
    try:
        test(**{parameter: given[parameter] for parameter in inspect.signature(test).parameters})
    finally:
        store.close()


def takes_processes(name: str) -> bool:
    return "workers" in inspect.signature(getattr(MemoryContract, f"test_{name}")).parameters


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        pytest.param(fault, name, marks=[pytest.mark.slow] if takes_processes(name) else [])
        for fault, names in RED.items()
        for name in sorted(names)
    ],
)
def test_it_goes_red_on_a_store_that(fault, name, tmp_path, request):
    crew = request.getfixturevalue("crew") if takes_processes(name) else None
    with pytest.raises(Violation) as told:
        hold(name, recipe(fault, tmp_path), crew)
    assert all(count > 0 for count, _ in told.value.counts.values())


def test_each_of_its_tests_can_go_red():
    assert set().union(*RED.values()) == TESTS


def test_it_needs_neither_django_nor_langchain():
    code = (
        "import sys, chatmemory.testing.contract\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'django', 'langchain_core', 'channels', 'asgiref'}))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603  # our own command line
    assert done.stdout == "[]\n"


def test_its_page_says_what_each_test_means():
    page = (ROOT / "docs/contract.md").read_text()
    assert {title for title in titles().values() if f"- {title}.\n" not in page} == set()


def test_the_scoreboard_shows_each_test():
    page = (ROOT / "docs/peers.md").read_text()
    assert {title for title in titles().values() if f"| {title} |" not in page} == set()


@pytest.mark.slow
def test_the_scoreboard_counts_what_a_store_loses(tmp_path):
    results = tmp_path / "results.json"
    options = ["-c", "tests/peers/pytest.ini", "--rootdir", ".", "--noconftest"]
    command = [sys.executable, "-m", "pytest", "-p", "tests.peers.results", *options]
    chosen = ["tests/peers/careless.py", "-k", "users_are_apart or a_session_expires"]
    env = {**os.environ, "PEERS_RESULTS": str(results), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, *chosen], cwd=ROOT, env=env, check=False, capture_output=True)  # noqa: S603  # our own command line
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    rows = table(
        cells_of(json.loads(results.read_text())),
        ["one list for all", "read, changed, written back", "nothing"],
    ).splitlines()
    users = "| Two users' sessions of the same name are apart | **12 of 24 of others** | pass |  |"
    assert users in rows
    assert "| A session expires, whole, and another begins | not offered | not offered |  |" in rows


def result(outcome: str, why: str = "", **counts: tuple[int, int]) -> dict[str, Any]:
    return {
        "column": "a",
        "test": "test_x",
        "outcome": outcome,
        "counts": counts,
        "why": why,
    }


@pytest.mark.parametrize(
    ("results", "shown"),
    [
        ([result("passed")], "pass"),
        ([result("passed"), result("failed", lost=(2, 4))], "**2 of 4 lost**"),
        ([result("failed", lost=(1, 4)), result("failed", lost=(3, 4))], "**3 of 4 lost**"),
        ([result("failed", "KeyError: 'a'")], "**KeyError: 'a'**"),
        ([result("passed"), result("skipped", "not offered: trim")], "pass"),
        ([result("skipped", "not offered: trim")], "not offered"),
        ([result("skipped", "no server")], "not run: no server"),
    ],
)
def test_a_cell_says_the_worst_of_its_forms(results, shown):
    assert str(cells_of(results)["a", "x"]) == shown
