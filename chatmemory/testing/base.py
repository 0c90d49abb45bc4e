"""Fixtures and test data that all parts of the contract share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import pytest

from chatmemory.testing.stores import Address, Message, Store, StoreFactory
from chatmemory.testing.violations import Violation
from chatmemory.testing.workers import WorkerPool

F = TypeVar("F", bound=Callable[..., None])


class Contract:
    """The fixtures and limits of each part. Override them to suit your store."""

    make_store: ClassVar[str]
    """The path of the function that makes the store, `package.module:function`."""

    threads: ClassVar[int] = 8
    processes: ClassVar[int] = 3
    batches: ClassVar[int] = 10
    """Batches that each thread or process appends."""
    long_history: ClassVar[int] = 2_000
    """Number of messages in a long session."""

    @pytest.fixture
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `make_store`; they must be JSON-serializable."""
        return {}

    @pytest.fixture
    def factory(self, arguments: dict[str, Any]) -> StoreFactory:
        return StoreFactory(path=self.make_store, arguments=arguments)

    @pytest.fixture
    def store(self, request: pytest.FixtureRequest, factory: StoreFactory) -> Iterator[Store]:
        """The store under test; skips a test whose operations the store does not offer."""
        store = factory.make()
        try:
            for operation in getattr(request.function, "needed", ()):
                if not store.offers(operation):
                    pytest.skip(f"not offered: {operation}")
            yield store
        finally:
            store.close()

    @pytest.fixture
    def at(self) -> Address:
        """The address of a session that does not exist."""
        return new_address()

    @pytest.fixture
    def workers(self) -> Iterator[WorkerPool]:
        """Worker processes; the fixture ends them after the test."""
        pool = WorkerPool()
        yield pool
        pool.end()


def needs(*operations: str) -> Callable[[F], F]:
    """Mark a test as requiring these operations of the store."""

    def mark(function: F) -> F:
        function.needed = operations  # type: ignore[attr-defined]  # read by the fixture `store`
        return function

    return mark


def new_address(user: str = "ann") -> Address:
    """Return an address that no other test uses, so stores need not be emptied."""
    return Address(user, uuid.uuid4().hex)


def make_messages(*texts: str) -> list[Message]:
    """Return messages that alternate between user and assistant; the first is the user's."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def pairs(writer: int, count: int) -> list[list[str]]:
    """Return the batches of one writer, each a question and an answer."""
    return [[f"{writer}.{number}.0", f"{writer}.{number}.1"] for number in range(count)]


def texts(messages: Sequence[Message]) -> list[str]:
    """Return the contents of the messages."""
    return [message["content"] for message in messages]


def read_back(store: Store, at: Address, expected_count: int) -> list[str]:
    """Read the contents. Raises Violation if the read fails: all expected ones are unreadable."""
    try:
        return texts(store.read(at))
    except Exception as error:  # a store may raise any class for data that it wrote itself
        raise Violation({"unreadable": (expected_count, expected_count)}) from error
