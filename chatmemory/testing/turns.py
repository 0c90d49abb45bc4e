"""Turns of a model: concurrent writes while it thinks, and turns that fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest

from chatmemory.testing.base import Contract, make_messages, needs, new_address, texts
from chatmemory.testing.models import (
    DEADLINE_SECONDS,
    OUTAGE_PATIENCE_SECONDS,
    Thinking,
    echo,
    reply_to,
)
from chatmemory.testing.sequence import require
from chatmemory.testing.stores import Address, Store, StoreFactory, in_thread
from chatmemory.testing.violations import check, check_same, doubled, missing
from chatmemory.testing.workers import WorkerPool


class Turns(Contract):
    """The promises for turns with a slow model."""

    @needs("turn")
    def test_a_turn_is_stored_and_given_to_the_next(self, store: Store, at: Address) -> None:
        """A turn is stored, and given to the model in the next turn."""
        model = Thinking(store)
        replies = [store.turn(at, text, model) for text in "12"]
        check_same(replies, ["re: 1", "re: 2"])
        check_same(texts(store.read(at)), ["1", "re: 1", "2", "re: 2"])
        check_same(model.given[-1], ["1", "re: 1", "2"])

    @needs("turn")
    def test_the_model_is_given_nothing_of_others(self, store: Store) -> None:
        """The model is given nothing of other users and sessions."""
        models = {new_address(user): Thinking(store) for user in ("ann", "ann", "bob")}
        for number in range(3):
            for n, (address, model) in enumerate(models.items()):
                store.turn(address, f"{n}.{number}", model)
        given = [
            (n, text.removeprefix("re: "))
            for n, model in enumerate(models.values())
            for window in model.given
            for text in window
        ]
        others = sum(not text.startswith(f"{n}.") for n, text in given)
        check(of_others=(others, len(given)))

    @needs("turn")
    def test_overlapping_turns_lose_nothing(self, store: Store, at: Address) -> None:
        """Two overlapping turns are both stored."""
        run_turns(store, at, 2)
        within = Thinking(store, lambda: store.turn(at, "inner", echo))
        store.turn(at, "outer", within)
        within.end()
        expected = ["1", "re: 1", "2", "re: 2", "inner", "re: inner", "outer", "re: outer"]
        found = texts(store.read(at))
        check(lost=(missing(found, expected), 8), doubled=(doubled(found, expected), 8))

    @needs("turn", "trim")
    def test_a_trim_while_the_model_thinks_remains(self, store: Store, at: Address) -> None:
        """Messages that are trimmed while the model thinks do not return."""
        run_turns(store, at, 4)
        run_turn_with(store, at, lambda: store.trim(at, 2))
        found = texts(store.read(at))
        trimmed = ["1", "re: 1", "2", "re: 2", "3", "re: 3"]
        kept = ["4", "re: 4", "last", "re: last"]
        check(
            returned=(sum(text in trimmed for text in found), len(trimmed)),
            doubled=(doubled(found, kept), len(kept)),
            lost=(missing(found, kept[2:]), 2),
        )

    @pytest.mark.parametrize("removal", ["clear", "purge"])
    @needs("turn")
    def test_a_removal_while_the_model_thinks_remains(
        self, store: Store, at: Address, removal: str
    ) -> None:
        """Messages that are cleared or purged while the model thinks do not return."""
        require(store, removal)
        run_turns(store, at, 3)
        with suppress(Exception):  # the turn may raise because its session was removed
            run_turn_with(store, at, lambda: getattr(store, removal)(at))
        check(returned=(len(store.read(at)), 8))
        store.turn(at, "new", echo)
        check_same(texts(store.read(at)), ["new", "re: new"])

    @needs("turn", "outage")
    def test_a_failed_save_reaches_the_caller(self, store: Store, at: Address) -> None:
        """A reply that can't be stored is an error to the caller."""
        run_turns(store, at, 1)
        with ExitStack() as outage:
            model = Thinking(store, lambda: outage.enter_context(store.outage()))
            turn = in_thread(store, lambda: store.turn(at, "2", model))
            with suppress(Exception):  # a store may continue to retry
                turn.result(OUTAGE_PATIENCE_SECONDS)
        if turn.exception(DEADLINE_SECONDS) is None:
            expected = ["1", "re: 1", "2", "re: 2"]
            check(lost_silently=(missing(texts(store.read(at)), expected), 2))

    @needs("turn")
    def test_a_crash_while_the_model_thinks_keeps_the_user_message(
        self, store: Store, factory: StoreFactory, at: Address, workers: WorkerPool
    ) -> None:
        """A crash while the model thinks loses no user message."""
        if not store.stores_user_message_first:
            pytest.skip("not offered: stores_user_message_first")
        run_turns(store, at, 1)
        (worker,) = workers.take(1, factory)
        with suppress(EOFError):
            worker.call(factory, "turn", at, "my message", "die")
        workers.kill(worker)
        check(lost=(missing(texts(store.read(at)), ["1", "re: 1", "my message"]), 3))

    @needs("turn")
    def test_a_new_process_knows_earlier_messages(
        self, store: Store, factory: StoreFactory, at: Address, workers: WorkerPool
    ) -> None:
        """After a restart the model is given the earlier messages."""
        facts = ["my number is 4711", "I live in Rome", "call me Ann"]
        (worker,) = workers.take(1, factory)
        for fact in facts:
            worker.call(factory, "turn", at, fact, "echo")
        workers.kill(worker)
        (worker,) = workers.take(1, factory)
        given = worker.call(factory, "turn", at, "who am I?", "recite")
        check(forgotten=(sum(fact not in given for fact in facts), len(facts)))

    @needs("turn", "bounded")
    def test_the_model_is_given_no_more_than_its_window(self, store: Store, at: Address) -> None:
        """The model is given no more than its window, however long the history is."""
        store.append(at, make_messages(*(reply_to(str(number)) for number in range(40))))
        model = Thinking(store)
        bounded = store.bounded(6)
        try:
            bounded.turn(at, "last", model)
        finally:
            if bounded is not store:
                bounded.close()
        (given,) = model.given
        check(over=(max(0, len(given) - 7), 34), lost=(missing(given, ["last"]), 1))


def run_turns(store: Store, at: Address, count: int) -> None:
    """Run turns whose texts are 1, 2, 3, …"""
    for number in range(count):
        store.turn(at, str(number + 1), echo)


def run_turn_with(store: Store, at: Address, meanwhile: Callable[[], object]) -> None:
    """Run a turn, and call `meanwhile` while its model thinks. Raises the exceptions of both."""
    model = Thinking(store, meanwhile)
    try:
        store.turn(at, "last", model)
    finally:
        model.end()
