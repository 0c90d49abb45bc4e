"""One call after another."""

from __future__ import annotations

import pytest

from chatmemory.testing.base import Contract, needs, new_address, said, texts
from chatmemory.testing.stores import Address, Store
from chatmemory.testing.violations import Violation, check, check_same, foreign


class InSequence(Contract):
    """What holds where nobody else is at work."""

    def test_what_was_said_is_read_in_its_order(self, store: Store, at: Address) -> None:
        """What was said is read in its order."""
        spoken = [f"{number}" for number in range(40)]
        for first in range(0, 40, 2):
            store.append(at, said(*spoken[first : first + 2]))
        check_same(texts(store.read(at)), spoken)

    def test_a_large_batch_is_kept_whole(self, store: Store, at: Address) -> None:
        """A batch of 120 is kept whole."""
        spoken = [f"{number}" for number in range(120)]
        store.append(at, said(*spoken))
        check_same(texts(store.read(at)), spoken)

    def test_sessions_are_apart(self, store: Store) -> None:
        """A user's sessions are apart."""
        check_apart(store, [new_address() for _ in range(3)])

    def test_users_are_apart(self, store: Store, at: Address) -> None:
        """Two users' sessions of the same name are apart."""
        check_apart(store, [at, at._replace(user="bob")])

    @needs("append_once")
    def test_a_retry_is_stored_once(self, store: Store, at: Address) -> None:
        """The same write again is stored once."""
        store.append_once(at, said("1", "2"), "first")
        for _ in range(2):
            store.append_once(at, said("3", "4"), "second")
        store.append_once(at, said("1", "2"), "first")
        check_same(texts(store.read(at)), ["1", "2", "3", "4"])

    @needs("append_once")
    def test_a_retry_with_other_words_is_refused(self, store: Store, at: Address) -> None:
        """The same id with other words is refused."""
        store.append_once(at, said("1", "2"), "first")
        try:
            store.append_once(at, said("1", "other"), "first")
        except Exception:
            check_same(texts(store.read(at)), ["1", "2"])
        else:
            raise Violation({"not refused": (1, 1)})

    def test_a_batch_is_stored_whole_or_not_at_all(self, store: Store, at: Address) -> None:
        """A batch with one bad message is stored whole or not at all."""
        store.append(at, said("1", "2"))
        bad = {"role": "user", "content": "5", "additional_kwargs": {"opened": object()}}
        try:
            store.append(at, [*said("3", "4"), bad])
        except Exception:
            check_same(texts(store.read(at)), ["1", "2"])
        else:
            check_same(texts(store.read(at)), ["1", "2", "3", "4", "5"])

    @needs("trim")
    def test_a_trim_keeps_the_newest(self, store: Store, at: Address) -> None:
        """A trim keeps the newest."""
        store.append(at, said("1", "2", "3", "4", "5", "6"))
        store.trim(at, 4)
        check_same(texts(store.read(at)), ["3", "4", "5", "6"])

    @needs("trim")
    def test_what_follows_a_trim_comes_last(self, store: Store, at: Address) -> None:
        """What is said after a trim comes last."""
        store.append(at, said("1", "2", "3", "4", "5", "6"))
        store.trim(at, 2)
        for first in range(7, 15, 2):
            store.append(at, said(str(first), str(first + 1)))
        check_same(texts(store.read(at)), [str(number) for number in range(5, 15)])

    @pytest.mark.parametrize("removal", ["clear", "purge"])
    def test_a_removal_leaves_nothing_and_the_session_goes_on(
        self, store: Store, at: Address, removal: str
    ) -> None:
        """A clear or purge leaves nothing, and what follows is kept."""
        require(store, removal)
        store.append(at, said("1", "2"))
        getattr(store, removal)(at)
        check(came_back=(len(store.read(at)), 2))
        store.append(at, said("3", "4"))
        check_same(texts(store.read(at)), ["3", "4"])

    @pytest.mark.parametrize("removal", ["clear", "purge"])
    def test_a_removal_spares_other_sessions(self, store: Store, at: Address, removal: str) -> None:
        """A clear or purge spares other sessions."""
        require(store, removal)
        others = [new_address(), at._replace(user="bob")]
        for address in (at, *others):
            store.append(address, said("1", "2"))
        getattr(store, removal)(at)
        kept = [texts(store.read(address)) for address in others]
        check(lost=(sum(2 - len(found) for found in kept), 4))


def require(store: Store, operation: str) -> None:
    """Skip the test where the store doesn't offer this."""
    if not store.offers(operation):
        pytest.skip(f"not offered: {operation}")


def check_apart(store: Store, addresses: list[Address]) -> None:
    """Write to the sessions in turn, and see that each has its own."""
    spoken = {
        address: [f"{n}.{number}" for number in range(6)] for n, address in enumerate(addresses)
    }
    for first in range(0, 6, 2):
        for address, own in spoken.items():
            store.append(address, said(*own[first : first + 2]))
    found = {address: texts(store.read(address)) for address in addresses}
    others = sum(foreign(found[address], spoken[address]) for address in addresses)
    check(of_others=(others, sum(map(len, found.values()))))
    for address in addresses:
        check_same(found[address], spoken[address])
