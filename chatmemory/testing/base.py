"""What the parts of the contract have in common."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import pytest

from chatmemory.testing.stores import Address, Message, Recipe, Store
from chatmemory.testing.violations import Violation
from chatmemory.testing.workers import Crew

F = TypeVar("F", bound=Callable[..., None])


class Contract:
    """The fixtures of each part; override what your store needs otherwise."""

    make_store: ClassVar[str]
    """The path of the function that makes the store, `package.module:function`."""

    threads: ClassVar[int] = 8
    processes: ClassVar[int] = 3
    batches: ClassVar[int] = 10
    """How many each of them appends."""
    long_history: ClassVar[int] = 2_000
    """How many messages a session of some years has."""

    @pytest.fixture
    def arguments(self) -> dict[str, Any]:
        """What `make_store` is called with; JSON must be able to say it."""
        return {}

    @pytest.fixture
    def recipe(self, arguments: dict[str, Any]) -> Recipe:
        return Recipe(path=self.make_store, arguments=arguments)

    @pytest.fixture
    def store(self, request: pytest.FixtureRequest, recipe: Recipe) -> Iterator[Store]:
        """The store under test; skips what it doesn't offer."""
        store = recipe.make()
        try:
            for operation in getattr(request.function, "needed", ()):
                if not store.offers(operation):
                    pytest.skip(f"not offered: {operation}")
            yield store
        finally:
            store.close()

    @pytest.fixture
    def at(self) -> Address:
        """A session that is not yet there."""
        return new_address()

    @pytest.fixture
    def workers(self) -> Iterator[Crew]:
        """Processes; ended after the test."""
        crew = Crew()
        yield crew
        crew.end()


def needs(*operations: str) -> Callable[[F], F]:
    """The test is for stores that offer these."""

    def mark(function: F) -> F:
        function.needed = operations  # type: ignore[attr-defined]  # read by the fixture `store`
        return function

    return mark


def new_address(user: str = "ann") -> Address:
    """One that no other test uses, so that stores need not be emptied."""
    return Address(user, uuid.uuid4().hex)


def said(*texts: str) -> list[Message]:
    """Messages: the user speaks first, then both in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def pairs(writer: int, count: int) -> list[list[str]]:
    """The batches of one writer, each a question and its answer."""
    return [[f"{writer}.{number}.0", f"{writer}.{number}.1"] for number in range(count)]


def texts(messages: Sequence[Message]) -> list[str]:
    """What was said."""
    return [message["content"] for message in messages]


def read_back(store: Store, at: Address, of: int) -> list[str]:
    """What was said, of which there should be `of`. Raises Violation where it can't be read."""
    try:
        return texts(store.read(at))
    except Exception as error:  # what a store raises for what it wrote itself, nobody can know
        raise Violation({"unreadable": (of, of)}) from error
