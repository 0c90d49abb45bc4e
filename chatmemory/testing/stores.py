"""The interface of a store under test, and how to make one in any process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

Message = Mapping[str, Any]
"""A JSON object with `role` (user, assistant, tool), `content` (text), and any of `id`, `name`,
`tool_calls`, `tool_call_id`, `artifact`, `usage`, `additional_kwargs`."""

Model = Callable[[Sequence[str]], str]
"""A language model: maps the given texts, newest last, to its reply. It may block, and may be
called in any thread."""


class Address(NamedTuple):
    """A user and the name of a session; two users may each have a session named `default`."""

    user: str
    session: str


class Store:
    """The base class of a store under test. Calls may come from any thread.

    `append` and `read` are required. The store offers each other operation that it overrides.
    """

    errors: tuple[type[Exception], ...] = (Exception,)
    """The errors that a call may raise while the backend is unavailable."""

    stores_user_message_first = False
    """Whether the store promises to store a turn's user message before it calls the model."""

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        """Append a batch to a session; the first batch creates the session."""
        raise NotImplementedError

    def read(self, at: Address) -> list[Message]:
        """Return all messages, oldest first; an empty list if the session does not exist."""
        raise NotImplementedError

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        """Append a batch, unless it is stored already under this `client_id`.

        Raises if other messages are stored under the `client_id`.
        """
        raise NotImplementedError

    def trim(self, at: Address, keep_last: int) -> None:
        """Remove all but the last messages."""
        raise NotImplementedError

    def clear(self, at: Address) -> None:
        """Remove all messages."""
        raise NotImplementedError

    def purge(self, at: Address) -> None:
        """Remove the session."""
        raise NotImplementedError

    def turn(self, at: Address, text: str, model: Model) -> str:
        """Run a turn as the store does: store the user's text and the reply; return the reply."""
        raise NotImplementedError

    def short_lived(self, seconds: float) -> Store:
        """Return a store on this memory whose sessions expire after this time without messages."""
        raise NotImplementedError

    def bounded(self, messages: int) -> Store:
        """Return a store on this memory whose model gets at most this many earlier messages."""
        raise NotImplementedError

    def outage(self) -> AbstractContextManager[None]:
        """Make the backend unavailable within the block."""
        raise NotImplementedError

    def damage(self, at: Address, index: int) -> None:
        """Make the stored message at this index, from 0, undecodable."""
        raise NotImplementedError

    def raw(self, at: Address) -> Iterable[bytes]:
        """Return the stored values of a session as the backend stores them."""
        raise NotImplementedError

    def age(self, at: Address, seconds: float) -> None:
        """Age a session by this time. By default it waits; override it to be faster."""
        time.sleep(seconds)

    def release(self) -> None:
        """Release the resources of the calling thread, which is about to end: its connection."""

    def close(self) -> None:
        """Release all resources; called at the end of a test."""

    def offers(self, operation: str) -> bool:
        """Whether the store overrides this operation."""
        return getattr(type(self), operation) is not getattr(Store, operation)

    def call_concurrently(self, operation: str, calls: Iterable[Sequence[Any]]) -> list[Any]:
        """Call the operation concurrently; return the result or exception of each."""
        listed = list(calls)
        barrier = threading.Barrier(len(listed))

        def call(arguments: Sequence[Any]) -> Any:
            barrier.wait()
            try:
                return getattr(self, operation)(*arguments)
            except Exception as error:
                return error
            finally:
                self.release()

        with ThreadPoolExecutor(len(listed)) as executor:
            return list(executor.map(call, listed))


class AsyncStore(Store):
    """The base class of a store with coroutines. They run in one event loop on its own thread.

    Override `aappend`, `aread` and so on instead of `append` and `read`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def aappend(self, at: Address, messages: Sequence[Message]) -> None:
        raise NotImplementedError

    async def aread(self, at: Address) -> list[Message]:
        raise NotImplementedError

    async def aappend_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        raise NotImplementedError

    async def atrim(self, at: Address, keep_last: int) -> None:
        raise NotImplementedError

    async def aclear(self, at: Address) -> None:
        raise NotImplementedError

    async def apurge(self, at: Address) -> None:
        raise NotImplementedError

    async def aturn(self, at: Address, text: str, model: Model) -> str:
        """Run a turn. The model blocks, so call it with `asyncio.to_thread`."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Release the resources of the event loop."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the store's loop; return its result. Call it from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        self.run(self.aappend(at, messages))

    def read(self, at: Address) -> list[Message]:
        return self.run(self.aread(at))

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        self.run(self.aappend_once(at, messages, client_id))

    def trim(self, at: Address, keep_last: int) -> None:
        self.run(self.atrim(at, keep_last))

    def clear(self, at: Address) -> None:
        self.run(self.aclear(at))

    def purge(self, at: Address) -> None:
        self.run(self.apurge(at))

    def turn(self, at: Address, text: str, model: Model) -> str:
        return self.run(self.aturn(at, text, model))

    def close(self) -> None:
        self.run(self.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def offers(self, operation: str) -> bool:
        # An operation is offered if the store overrides it, or the coroutine that it calls.
        names = (operation, f"a{operation}")
        return any(getattr(type(self), n, None) is not getattr(AsyncStore, n, None) for n in names)

    def call_concurrently(self, operation: str, calls: Iterable[Sequence[Any]]) -> list[Any]:
        async_version = getattr(self, f"a{operation}")

        async def call_all() -> list[Any]:
            coroutines = [async_version(*arguments) for arguments in calls]
            return list(await asyncio.gather(*coroutines, return_exceptions=True))

        return self.run(call_all())


@dataclass(frozen=True, kw_only=True)
class StoreFactory:
    """How to make a store in any process: the path of a function, and its arguments."""

    path: str
    """`package.module:function`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The function's keyword arguments; they must be JSON-serializable."""

    def make(self) -> Store:
        """Make a store. All stores of one factory share their memory."""
        module, _, name = self.path.partition(":")
        store: Store = getattr(import_module(module), name)(**self.arguments)
        return store


def in_thread(store: Store, call: Callable[[], T]) -> Future[T]:
    """Start a call in a new thread; release the store's resources at its end."""

    def work() -> T:
        try:
            return call()
        finally:
            store.release()

    executor = ThreadPoolExecutor(1)
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future
