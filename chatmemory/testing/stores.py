"""What a store looks like to the contract, and how one is made, here or in another process."""

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
"""A dict that JSON can say: `role` (user, assistant, tool), `content` (a text), and any of `id`,
`name`, `tool_calls`, `tool_call_id`, `artifact`, `usage`, `additional_kwargs`."""

Model = Callable[[Sequence[str]], str]
"""Stands for the language model: from the texts that it is given, the newest last, to its reply.
It may take its time, and may be called in any thread."""

OPERATIONS = (
    "append_once",
    "trim",
    "clear",
    "purge",
    "turn",
    "short_lived",
    "bounded",
    "outage",
    "damage",
    "raw",
)
"""What a store may leave out. A test that needs it is skipped as not offered, never passed."""


class Address(NamedTuple):
    """Whose session, and which; two users may both have one called `default`."""

    user: str
    session: str


class Store:
    """A memory, as the contract drives it. Subclass it; each call may come from any thread.

    `append` and `read` must be there; what else you override is what the store offers.
    """

    errors: tuple[type[Exception], ...] = (Exception,)
    """What a call may raise while the backend can't be reached."""

    keeps_words = False
    """Whether it says that a turn's words are stored before the model is asked."""

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        """Add a batch to the end of a session, which begins with its first message."""
        raise NotImplementedError

    def read(self, at: Address) -> list[Message]:
        """All messages of a session in order, none if there is no such session."""
        raise NotImplementedError

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        """Append, but only if nothing was appended under this `client_id` before.

        The same again does nothing; with other messages it raises.
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
        """Let the user say something; return the reply. In the store's own way, whatever it is."""
        raise NotImplementedError

    def short_lived(self, seconds: float) -> Store:
        """The same store, whose sessions expire so long after their last message."""
        raise NotImplementedError

    def bounded(self, messages: int) -> Store:
        """The same store, whose turns give the model at most so many earlier messages."""
        raise NotImplementedError

    def outage(self) -> AbstractContextManager[None]:
        """Within it, the backend can't be reached."""
        raise NotImplementedError

    def damage(self, at: Address, place: int) -> None:
        """Make the stored message at this place, from 0, one that can't be decoded."""
        raise NotImplementedError

    def raw(self, at: Address) -> Iterable[bytes]:
        """What the backend holds of a session, each value as it lies there."""
        raise NotImplementedError

    def age(self, at: Address, seconds: float) -> None:
        """Let so much time pass for a session. Waits, where the store can't do it sooner."""
        time.sleep(seconds)

    def release(self) -> None:
        """Let go of what the calling thread holds, such as a connection; called at its end."""

    def close(self) -> None:
        """Let go of everything; called at the end of a test."""

    def offers(self, operation: str) -> bool:
        """Whether the store has this operation."""
        return getattr(type(self), operation) is not getattr(Store, operation)

    def at_once(self, operation: str, calls: Iterable[Sequence[Any]]) -> list[Any]:
        """What the operation returns, or raises, for each tuple of arguments, all at one time."""
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
    """A memory whose calls are coroutines, run in one event loop on a thread of its own.

    Override `aappend`, `aread` and so on in place of the operations of the same name.
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
        """As `turn`; the model waits, so call it with `asyncio.to_thread`."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Let go of what belongs to the event loop."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns, run in the store's loop; from any other thread."""
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
        own = (getattr(type(self), name, None) for name in (operation, f"a{operation}"))
        base = (getattr(AsyncStore, name, None) for name in (operation, f"a{operation}"))
        return any(one is not other for one, other in zip(own, base, strict=True))

    def at_once(self, operation: str, calls: Iterable[Sequence[Any]]) -> list[Any]:
        twin = getattr(self, f"a{operation}")

        async def gathered() -> list[Any]:
            begun = [twin(*arguments) for arguments in calls]
            return list(await asyncio.gather(*begun, return_exceptions=True))

        return self.run(gathered())


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to make a store, in any process: a function by its path, and what it is called with."""

    path: str
    """`package.module:function`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Its keyword arguments, such as JSON can say."""

    def make(self) -> Store:
        """A store of its own on the memory that all of this recipe share."""
        module, _, name = self.path.partition(":")
        made: Store = getattr(import_module(module), name)(**self.arguments)
        return made


def in_thread(store: Store, call: Callable[[], T]) -> Future[T]:
    """Begin a call in a thread of its own."""

    def work() -> T:
        try:
            return call()
        finally:
            store.release()

    executor = ThreadPoolExecutor(1)
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future
