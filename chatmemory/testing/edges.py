"""Edge cases: long, unusual, expired and damaged data."""

from __future__ import annotations

import json
import pickletools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from chatmemory.testing.base import Contract, make_messages, needs, texts
from chatmemory.testing.stores import Address, Message, Store, StoreFactory
from chatmemory.testing.violations import Violation, check, check_same, missing
from chatmemory.testing.workers import WorkerPool

SHORT_SECONDS = 2.0

ARGUMENTS = {"zone": "Rome", "at": [1, 2.5, None, True], "a": {"z": 1, "b": "é"}}
"""Arguments of a tool call; their keys are not sorted."""

RICH: list[Message] = [
    {"role": "user", "content": "Rain?", "id": "message-1", "name": "Ann"},
    {
        "role": "assistant",
        "content": "",
        "id": "message-2",
        "name": "helper",
        "tool_calls": [{"name": "weather", "args": ARGUMENTS, "id": "call-1"}],
        "usage": {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15},
        "additional_kwargs": {"trace": {"id": "x-1"}},
    },
    {
        "role": "tool",
        "content": "rain",
        "id": "message-3",
        "name": "weather",
        "tool_call_id": "call-1",
        "artifact": {"millimetres": [0.1, 2]},
    },
]
"""Messages with all fields that a message can have."""

CHARACTERS = [
    " leading and trailing \n\t ",
    "line\r\nline\rline\u2028line\u0085line",
    "e\u0301 is not \u00e9",
    "שלום \u202ereversed\u202c مرحبا",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1ee\U0001f1f9",
    "\U00020000 \U0010ffff \ufffe \uffff",
    "Z\u0351\u0343\u0352" + "\u0301" * 500,
    "".join(map(chr, range(0x20, 0x7F))),
    "".join(map(chr, [*range(1, 0x20), *range(0x7F, 0xA0)])),
    "Alice",
    "alice",
    "'; DROP TABLE messages; -- %s %(x)s {x} {{x}} ${x} \\u0041 \\x41 \\",
    '{"role": "system", "content": "x"}',
    "null",
    "\ufeffmarked",
    "0",
]

LOOKS_LIKE_CODE = {
    "lc": 1,
    "type": "secret",
    "id": ["PATH"],
    "__class__": "os.system",
    "py/object": "os.system",
    "$ref": "#/x",
}
"""Data that an unsafe deserializer might execute, or replace by a secret."""


class Edges(Contract):
    """The promises for edge cases."""

    def test_a_message_is_read_as_it_was_stored(self, store: Store, at: Address) -> None:
        """Tool calls, results, usage, ids and names are preserved."""
        store.append(at, RICH)
        found = store.read(at)
        check_same(texts(found), texts(RICH))
        sent = [(n, key, value) for n, message in enumerate(RICH) for key, value in message.items()]
        dropped = sum(not is_kept(value, found[n].get(key)) for n, key, value in sent)
        check(dropped=(dropped, len(sent)))

    def test_keys_keep_their_order(self, store: Store, at: Address) -> None:
        """The keys of a tool call's arguments keep their order."""
        store.append(at, RICH)
        calls = store.read(at)[1].get("tool_calls") or [{"args": None}]
        if json.dumps(calls[0]["args"]) != json.dumps(ARGUMENTS):
            raise Violation({"reordered": (1, 1)})

    def test_each_character_is_preserved(self, store: Store, at: Address) -> None:
        """Every kind of character is preserved."""
        store.append(at, make_messages(*CHARACTERS))
        found = texts(store.read(at))
        check_same(sorted(found), sorted(CHARACTERS))
        check_same(found, CHARACTERS)

    @pytest.mark.parametrize("character", ["\0", "\ud800"], ids=["nul", "surrogate"])
    def test_unstorable_text_is_kept_or_refused(
        self, store: Store, at: Address, character: str
    ) -> None:
        """NUL and lone surrogates are stored or refused, and harm nothing."""
        store.append(at, make_messages("1", "2"))
        odd = f"a{character}b"
        expected = ["1", "2", odd, "4"]
        try:
            store.append(at, make_messages(odd, "4"))
        except Exception:
            expected = ["1", "2"]
        try:
            store.append(at, make_messages("5", "6"))
            found = texts(store.read(at))
        except Exception as error:
            raise Violation({"poisoned": (1, 1)}) from error
        check_same(found, [*expected, "5", "6"])

    def test_a_very_long_message_is_preserved(self, store: Store, at: Address) -> None:
        """A message of 300,000 characters is preserved."""
        long = "".join(chr(0x4E00 + number % 5_000) for number in range(300_000))
        store.append(at, make_messages(long, "short"))
        found = texts(store.read(at))
        check(altered=(missing(found, [long, "short"]), 2))

    def test_a_long_history_is_read_completely(self, store: Store, at: Address) -> None:
        """A long history is read completely."""
        contents = [str(number) for number in range(self.long_history)]
        for first in range(0, self.long_history, 500):
            store.append(at, make_messages(*contents[first : first + 500]))
        check_same(texts(store.read(at)), contents)

    def test_data_stays_data(self, store: Store, at: Address) -> None:
        """Data that looks like an object of the program stays data."""
        message = {"role": "assistant", "content": "x", "additional_kwargs": LOOKS_LIKE_CODE}
        store.append(at, [*make_messages("1"), message])
        found = store.read(at)[-1].get("additional_kwargs")
        check(altered=(int(found != LOOKS_LIKE_CODE), 1))

    def test_nothing_is_pickled(self, factory: StoreFactory, at: Address) -> None:
        """Nothing is pickled."""
        with pickling() as seen:
            store = factory.make()
            try:
                store.append(at, RICH)
                store.read(at)
                values = [bytes(value) for value in store.raw(at)] if store.offers("raw") else []
            finally:
                store.release()
                store.close()
        check(pickled=(len(seen), len(seen)))
        check(stored_as_pickle=(sum(map(is_pickle, values)), len(values)))

    @needs("damage")
    def test_a_damaged_message_hides_no_other(self, store: Store, at: Address) -> None:
        """A damaged message is shown, and hides no other."""
        store.append(at, [*make_messages("1", "2"), RICH[1], *make_messages("4", "5")])
        store.damage(at, 2)
        try:
            found = texts(store.read(at))
        except Exception as error:  # a damaged value can raise any class
            raise Violation({"unreadable": (5, 5)}) from error
        check(lost=(5 - len(found) + missing(found, ["1", "2", "4", "5"]), 5))

    @needs("short_lived")
    def test_a_session_expires(self, store: Store, at: Address) -> None:
        """A session expires completely, and a new one starts."""
        short = store.short_lived(SHORT_SECONDS)
        short.append(at, make_messages("1", "2"))
        short.age(at, SHORT_SECONDS * 1.2)
        check(stayed=(len(short.read(at)), 2))
        short.append(at, make_messages("3", "4"))
        check_same(texts(short.read(at)), ["3", "4"])

    @needs("short_lived")
    def test_a_session_in_use_does_not_expire(self, store: Store, at: Address) -> None:
        """A session in use does not expire."""
        short = store.short_lived(SHORT_SECONDS)
        for text in "123":
            short.append(at, make_messages(text))
            short.age(at, SHORT_SECONDS * 0.6)
        check_same(texts(short.read(at)), ["1", "2", "3"])

    def test_the_memory_survives_its_process(
        self, store: Store, factory: StoreFactory, at: Address, workers: WorkerPool
    ) -> None:
        """The memory survives its process."""
        (worker,) = workers.take(1, factory)
        worker.call(factory, "append", at, make_messages("1", "2", "3", "4"))
        workers.kill(worker)
        check_same(texts(store.read(at)), ["1", "2", "3", "4"])

    @needs("outage")
    def test_an_outage_is_an_error_not_an_empty_memory(self, store: Store, at: Address) -> None:
        """An outage is an error, never an empty list, and loses nothing."""
        store.append(at, make_messages("1", "2"))
        hidden = 0
        with store.outage():
            for call in (lambda: store.read(at), lambda: store.append(at, make_messages("3", "4"))):
                try:
                    call()
                except store.errors:
                    continue
                hidden += 1
        check(hidden=(hidden, 2))
        check_same(texts(store.read(at)), ["1", "2"])
        store.append(at, make_messages("5", "6"))
        check_same(texts(store.read(at)), ["1", "2", "5", "6"])


def is_kept(sent: object, found: object) -> bool:
    """Whether all sent values are found; a store may add keys to a dict."""
    match sent, found:
        case dict(), dict():
            return all(is_kept(value, found.get(key)) for key, value in sent.items())
        case list(), list():
            return len(sent) == len(found) and all(map(is_kept, sent, found))
        case _:
            return sent == found


def is_pickle(value: bytes) -> bool:
    """Whether the value is a complete pickle of protocol 2 or later."""
    if not value.startswith(b"\x80"):
        return False
    try:
        return list(pickletools.genops(value))[-1][0].name == "STOP"
    except ValueError:
        return False


@contextmanager
def pickling() -> Iterator[list[str]]:
    """Record the calls of picklers and unpicklers in the block, also in threads started there."""
    seen: list[str] = []

    # A profile function, since a patch of `pickle` would miss modules that imported its names.
    def record(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            owner = type(getattr(called, "__self__", None)).__mro__
            modules = {getattr(called, "__module__", None), *(cls.__module__ for cls in owner)}
            if "_pickle" in modules:
                seen.append(called.__name__)
        elif event == "call" and frame.f_globals.get("__name__") == "pickle":
            seen.append(frame.f_code.co_name)

    before = sys.getprofile()
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        yield seen
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
