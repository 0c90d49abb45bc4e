"""What a memory promises: tests to which any store can be held.

Subclass `MemoryContract`, and say how your store is made:

    class TestMyStore(MemoryContract):
        make_store = "my_package.testing:make_store"

The function is called with the values of the fixture `arguments`, in this process and in others,
and returns a `chatmemory.testing.stores.Store`. What fails says what is wrong, counted; what the
store doesn't offer is skipped.
"""

from __future__ import annotations

from chatmemory.testing.concurrency import AtOnce
from chatmemory.testing.edges import Edges
from chatmemory.testing.sequence import InSequence
from chatmemory.testing.stores import Address, AsyncStore, Message, Model, Recipe, Store
from chatmemory.testing.turns import Turns
from chatmemory.testing.violations import Violation

__all__ = [
    "Address",
    "AsyncStore",
    "AtOnce",
    "Edges",
    "InSequence",
    "MemoryContract",
    "Message",
    "Model",
    "Recipe",
    "Store",
    "Turns",
    "Violation",
]


class MemoryContract(InSequence, AtOnce, Turns, Edges):
    """All of it: one call after another, many at once, a model at work, the edges."""
