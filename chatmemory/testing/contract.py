"""The contract of a chat memory, as tests that any store can run.

Subclass `MemoryContract` and name the function that makes your store:

    class TestMyStore(MemoryContract):
        make_store = "my_package.testing:make_store"

The function is called with the values of the fixture `arguments`, in this process and in others,
and returns a `chatmemory.testing.stores.Store`. A failed test raises a `Violation` with counts. A
test whose operation the store does not offer is skipped.
"""

from __future__ import annotations

from chatmemory.testing.concurrency import ConcurrentWriters
from chatmemory.testing.edges import Edges
from chatmemory.testing.sequence import SequentialCalls
from chatmemory.testing.stores import Address, AsyncStore, Message, Model, Store, StoreFactory
from chatmemory.testing.turns import Turns
from chatmemory.testing.violations import Violation

__all__ = [
    "Address",
    "AsyncStore",
    "ConcurrentWriters",
    "Edges",
    "MemoryContract",
    "Message",
    "Model",
    "SequentialCalls",
    "Store",
    "StoreFactory",
    "Turns",
    "Violation",
]


class MemoryContract(SequentialCalls, ConcurrentWriters, Turns, Edges):
    """The whole contract: sequential and concurrent writers, turns of a model, edge cases."""
