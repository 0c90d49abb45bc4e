"""Sequential calls: order, isolation, retries, removals."""

from __future__ import annotations

import pytest

from chatmemory.testing.base import Contract, make_messages, needs, new_address, texts
from chatmemory.testing.stores import Address, Store
from chatmemory.testing.violations import Violation, check, check_same, foreign


class SequentialCalls(Contract):
    """The promises for a single caller."""

    def test_messages_are_read_in_order(self, store: Store, at: Address) -> None:
        """Messages are read in the order in which they were stored."""
        contents = [f"{number}" for number in range(40)]
        for first in range(0, 40, 2):
            store.append(at, make_messages(*contents[first : first + 2]))
        check_same(texts(store.read(at)), contents)

    def test_a_large_batch_is_stored_completely(self, store: Store, at: Address) -> None:
        """A batch of 120 is stored completely."""
        contents = [f"{number}" for number in range(120)]
        store.append(at, make_messages(*contents))
        check_same(texts(store.read(at)), contents)

    def test_sessions_are_separate(self, store: Store) -> None:
        """A user's sessions are separate."""
        check_separate(store, [new_address() for _ in range(3)])

    def test_users_are_separate(self, store: Store, at: Address) -> None:
        """Two users' sessions of the same name are separate."""
        check_separate(store, [at, at._replace(user="bob")])

    @needs("append_once")
    def test_a_retry_is_stored_once(self, store: Store, at: Address) -> None:
        """A repeated write is stored once."""
        store.append_once(at, make_messages("1", "2"), "first")
        for _ in range(2):
            store.append_once(at, make_messages("3", "4"), "second")
        store.append_once(at, make_messages("1", "2"), "first")
        check_same(texts(store.read(at)), ["1", "2", "3", "4"])

    @needs("append_once")
    def test_a_retry_with_other_content_is_refused(self, store: Store, at: Address) -> None:
        """A repeated id with other content is refused."""
        store.append_once(at, make_messages("1", "2"), "first")
        try:
            store.append_once(at, make_messages("1", "other"), "first")
        except Exception:
            check_same(texts(store.read(at)), ["1", "2"])
        else:
            raise Violation({"not refused": (1, 1)})

    def test_a_batch_is_stored_completely_or_not_at_all(self, store: Store, at: Address) -> None:
        """A batch with one bad message is stored completely or not at all."""
        store.append(at, make_messages("1", "2"))
        bad = {"role": "user", "content": "5", "additional_kwargs": {"opened": object()}}
        try:
            store.append(at, [*make_messages("3", "4"), bad])
        except Exception:
            check_same(texts(store.read(at)), ["1", "2"])
        else:
            check_same(texts(store.read(at)), ["1", "2", "3", "4", "5"])

    @needs("trim")
    def test_a_trim_keeps_the_newest(self, store: Store, at: Address) -> None:
        """A trim keeps the newest messages."""
        store.append(at, make_messages("1", "2", "3", "4", "5", "6"))
        store.trim(at, 4)
        check_same(texts(store.read(at)), ["3", "4", "5", "6"])

    @needs("trim")
    def test_a_message_after_a_trim_is_the_last(self, store: Store, at: Address) -> None:
        """A message stored after a trim is the last."""
        store.append(at, make_messages("1", "2", "3", "4", "5", "6"))
        store.trim(at, 2)
        for first in range(7, 15, 2):
            store.append(at, make_messages(str(first), str(first + 1)))
        check_same(texts(store.read(at)), [str(number) for number in range(5, 15)])

    @pytest.mark.parametrize("removal", ["clear", "purge"])
    def test_a_removal_leaves_nothing_and_the_session_continues(
        self, store: Store, at: Address, removal: str
    ) -> None:
        """A clear or purge leaves nothing, and later messages are stored."""
        require(store, removal)
        store.append(at, make_messages("1", "2"))
        getattr(store, removal)(at)
        check(returned=(len(store.read(at)), 2))
        store.append(at, make_messages("3", "4"))
        check_same(texts(store.read(at)), ["3", "4"])

    @pytest.mark.parametrize("removal", ["clear", "purge"])
    def test_a_removal_changes_no_other_session(
        self, store: Store, at: Address, removal: str
    ) -> None:
        """A clear or purge changes no other session."""
        require(store, removal)
        others = [new_address(), at._replace(user="bob")]
        for address in (at, *others):
            store.append(address, make_messages("1", "2"))
        getattr(store, removal)(at)
        kept = [texts(store.read(address)) for address in others]
        check(lost=(sum(2 - len(found) for found in kept), 4))


def require(store: Store, operation: str) -> None:
    """Skip the test if the store does not offer the operation."""
    if not store.offers(operation):
        pytest.skip(f"not offered: {operation}")


def check_separate(store: Store, addresses: list[Address]) -> None:
    """Write to the sessions alternately; check that each has only its own messages."""
    contents = {
        address: [f"{n}.{number}" for number in range(6)] for n, address in enumerate(addresses)
    }
    for first in range(0, 6, 2):
        for address, own in contents.items():
            store.append(address, make_messages(*own[first : first + 2]))
    found = {address: texts(store.read(address)) for address in addresses}
    others = sum(foreign(found[address], contents[address]) for address in addresses)
    check(of_others=(others, sum(map(len, found.values()))))
    for address in addresses:
        check_same(found[address], contents[address])
