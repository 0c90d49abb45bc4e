"""Stores that break a promise each, to see that the contract tells; in how many ways one can."""

# ruff: noqa: S608  # names of our own only

from __future__ import annotations

import json
import os
import pickle
import queue
import sqlite3
import threading
import time
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from chatmemory.testing.stores import Address, Message, Model, Recipe, Store
from tests.shelf import MINE, Refused, Shelf

ROUND_TRIP_SECONDS = 0.002


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


class SharedBuffer(Store):
    """One buffer, made once, for whoever asks; gone with its process."""

    said: ClassVar[list[Message]] = []

    def __init__(self, path: str) -> None:
        """`path` is that of other stores. Each test begins as a process does."""
        self.said.clear()

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        self.said.extend(messages)

    def read(self, at: Address) -> list[Message]:
        return list(self.said)

    def clear(self, at: Address) -> None:
        self.said.clear()

    def turn(self, at: Address, text: str, model: Model) -> str:
        reply = model([*(message["content"] for message in self.said), text])
        self.said.extend([user(text), assistant(reply)])
        return reply


class Rewritten(Store):
    """Each session is a value that is read, added to and written back."""

    def __init__(self, path: str) -> None:
        self.folder = Path(path).parent

    def file(self, at: Address) -> Path:
        return self.folder / sha256("\n".join(at).encode()).hexdigest()

    def read(self, at: Address) -> list[Message]:
        try:
            found: list[Message] = json.loads(self.file(at).read_text())
        except FileNotFoundError:
            return []
        return found

    def write(self, at: Address, messages: Sequence[Message]) -> None:
        draft = self.file(at).with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        draft.write_text(json.dumps(messages))
        draft.rename(self.file(at))

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        before = self.read(at)
        time.sleep(ROUND_TRIP_SECONDS)
        self.write(at, [*before, *messages])

    def clear(self, at: Address) -> None:
        self.file(at).unlink(missing_ok=True)

    def turn(self, at: Address, text: str, model: Model) -> str:
        before = self.read(at)
        reply = model([*(message["content"] for message in before), text])
        self.write(at, [*before, user(text), assistant(reply)])
        return reply


class OneForAll(Shelf):
    """Looks for the name of a session, and not whose it is."""

    def store(self, at: Address, messages: Sequence[Message], **more: Any) -> int:
        return super().store(at._replace(user=""), messages, **more)

    def read(self, at: Address) -> list[Message]:
        return super().read(at._replace(user=""))


class Newest(Shelf):
    """Reads backwards."""

    def read(self, at: Address) -> list[Message]:
        return super().read(at)[::-1]


class CutBatches(Shelf):
    """Takes ten messages at a time."""

    def store(self, at: Address, messages: Sequence[Message], **more: Any) -> int:
        return super().store(at, messages[:10], **more)


class CutReads(Shelf):
    """Gives a thousand at most."""

    def read(self, at: Address) -> list[Message]:
        return super().read(at)[:1_000]


class Repeating(Shelf):
    """Stores a retry as if it were another write."""

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        self.append(at, messages)


class LookingFirst(Shelf):
    """Looks whether a write is there, and then writes."""

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        bodies = [self.dump(message) for message in messages]
        with self.locked() as cursor:
            if self.is_stored(cursor, at, bodies, client_id):
                return
        time.sleep(ROUND_TRIP_SECONDS)
        with suppress(Refused):
            self.store(at, messages)


class Obliging(Shelf):
    """Takes another write for a retry by its id alone."""

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        with suppress(Refused):
            super().append_once(at, messages, client_id)


class RowByRow(Shelf):
    """Writes each message of a batch for itself."""

    def store(self, at: Address, messages: Sequence[Message], **more: Any) -> int:
        for message in messages:
            time.sleep(ROUND_TRIP_SECONDS)
            epoch = super().store(at, [message], **more)
        return epoch


class Halving(Shelf):
    """Stores a batch up to the first message that it can't."""

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        for message in messages:
            self.store(at, [message])


class TrimmingTheNewest(Shelf):
    """Keeps the beginning."""

    def trim(self, at: Address, keep_last: int) -> None:
        with self.locked() as cursor:
            cursor.execute(f"DELETE FROM message WHERE {MINE} AND seq > ?", [*at, keep_last])


class Counting(Shelf):
    """Gives the number after the number of rows, which trimmed ones had."""

    def begin(self, cursor: sqlite3.Cursor, at: Address, epoch: int | None) -> tuple[int, int]:
        _, now = super().begin(cursor, at, epoch)
        (count,) = cursor.execute(f"SELECT count(*) FROM message WHERE {MINE}", at).fetchone()
        return count, now

    def trim(self, at: Address, keep_last: int) -> None:
        with self.locked() as cursor:
            (last,) = cursor.execute(f"SELECT last FROM session WHERE {MINE}", at).fetchone()
            cursor.execute(
                f"DELETE FROM message WHERE {MINE} AND seq <= ?", [*at, last - keep_last]
            )

    def insert(self, cursor: sqlite3.Cursor, *arguments: Any) -> None:
        with suppress(sqlite3.IntegrityError):
            super().insert(cursor, *arguments)


class ClearingNothing(Shelf):
    """Says that it did."""

    def remove(self, at: Address, change: str, value: int) -> None:
        pass


class ClearingAll(Shelf):
    """Clears the sessions of everybody."""

    def remove(self, at: Address, change: str, value: int) -> None:
        with self.locked() as cursor:
            cursor.execute(f"UPDATE session SET {change}", [value])


class Absent(Shelf):
    """Keeps the address in the object that its threads share."""

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        self.at = at
        time.sleep(ROUND_TRIP_SECONDS)
        super().append(self.at, messages)


class ByStart(Shelf):
    """Orders by the time at which a write began."""

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        began = time.monotonic_ns()
        time.sleep(ROUND_TRIP_SECONDS * (began % 5))
        super().append(at, [{**message, "began": began} for message in messages])

    def read(self, at: Address) -> list[Message]:
        return sorted(super().read(at), key=lambda message: message.get("began", 0))


class WriteBehind(Shelf):
    """Acknowledges what it will write soon."""

    def __init__(self, path: str, **more: Any) -> None:
        super().__init__(path, **more)
        self.waiting: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        while True:
            at, messages = self.waiting.get()
            time.sleep(ROUND_TRIP_SECONDS)
            super().append(at, messages)

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        self.waiting.put((at, messages))


class WritingBack(Shelf):
    """Writes what it read at the start of a turn, and the turn."""

    def turn(self, at: Address, text: str, model: Model) -> str:
        before = [*self.read(at), user(text)]
        reply = model([str(message["content"]) for message in before])
        self.clear(at)
        self.store(at, [*before, assistant(reply)])
        return reply


class Swallowing(Shelf):
    """Logs that a turn could not be stored, and goes on."""

    def turn(self, at: Address, text: str, model: Model) -> str:
        reply = model([str(message["content"]) for message in self.read(at)] + [text])
        with suppress(sqlite3.OperationalError):
            self.store(at, [user(text), assistant(reply)])
        return reply


class Leaking(Shelf):
    """Keeps one window for all."""

    seen: ClassVar[list[str]] = []

    def turn(self, at: Address, text: str, model: Model) -> str:
        self.seen.append(text)
        reply = model(self.seen)
        self.store(at, [user(text), assistant(reply)])
        return reply


class Bare(Shelf):
    """Keeps role and content."""

    def dump(self, message: Message) -> str:
        return super().dump({name: message[name] for name in ("role", "content")})


class Sorting(Shelf):
    """Sorts the keys."""

    def dump(self, message: Message) -> str:
        return json.dumps(message, sort_keys=True)


class Normal(Shelf):
    """Normalises text."""

    def dump(self, message: Message) -> str:
        return super().dump(
            {**message, "content": unicodedata.normalize("NFC", message["content"])}
        )


class Tidy(Shelf):
    """Leaves out what it can't hold, without a word."""

    def dump(self, message: Message) -> str:
        text = message["content"].replace("\0", "").encode(errors="ignore").decode()
        return super().dump({**message, "content": text})


class Narrow(Shelf):
    """Has a column of 65,535 characters."""

    def dump(self, message: Message) -> str:
        return super().dump({**message, "content": message["content"][:65_535]})


class Reviving(Shelf):
    """Makes objects of what looks like one."""

    def load(self, body: str) -> Message:
        def revived(found: dict[str, Any]) -> Any:
            return os.environ.get(found["id"][0]) if found.get("lc") == 1 else found

        loaded: Message = json.loads(body, object_hook=revived)
        return loaded


class Pickling(Shelf):
    """Stores pickles."""

    def dump(self, message: Message) -> Any:
        return pickle.dumps(message)

    def load(self, body: Any) -> Message:
        loaded: Message = pickle.loads(body)  # noqa: S301  # what not to do
        return loaded


class Fragile(Shelf):
    """Reads all or nothing."""

    def load(self, body: str) -> Message:
        loaded: Message = json.loads(body)
        return loaded


class Hiding(Shelf):
    """Leaves out what it can't read."""

    def read(self, at: Address) -> list[Message]:
        return [found for found in super().read(at) if found["content"] != "(damaged)"]


class Everlasting(Shelf):
    """Lets nothing expire."""

    def is_expired(self, used: float) -> bool:
        return False


class Strict(Shelf):
    """Lets a session expire so long after its first message."""

    def age(self, at: Address, seconds: float) -> None:
        with self.locked() as cursor:
            cursor.execute(
                f"UPDATE session SET used = (SELECT -count(*) * ? + ? FROM message WHERE {MINE})"
                f" WHERE {MINE}",
                [seconds, time.time(), *at, *at],
            )


class Smoothing(Shelf):
    """Takes an error for an empty memory."""

    def read(self, at: Address) -> list[Message]:
        try:
            return super().read(at)
        except sqlite3.OperationalError:
            return []


class Boundless(Shelf):
    """Gives the model all."""

    def bounded(self, messages: int) -> Store:
        return Shelf(self.path)


def make(fault: str, path: str) -> Store:
    """The store of this name."""
    store: Store = {"Shelf": Shelf, **globals()}[fault](path=path)
    return store


def recipe(fault: str, folder: Path) -> Recipe:
    """How to make it in any process."""
    return Recipe(
        path="tests.careless:make", arguments={"fault": fault, "path": str(folder / "memory")}
    )


RED: dict[str, set[str]] = {
    "SharedBuffer": {
        "sessions_are_apart",
        "users_are_apart",
        "threads_stay_in_their_sessions",
        "a_removal_spares_other_sessions",
        "a_turn_is_given_nothing_of_others",
        "the_memory_outlives_its_process",
        "a_new_process_knows_what_was_said",
    },
    "Rewritten": {
        "threads_lose_nothing",
        "processes_lose_nothing",
        "overlapping_turns_lose_nothing",
        "what_was_read_never_changes",
        "a_removal_while_the_model_thinks_stays",
    },
    "OneForAll": {"users_are_apart"},
    "Newest": {"what_was_said_is_read_in_its_order"},
    "CutBatches": {"a_large_batch_is_kept_whole"},
    "CutReads": {"a_long_history_comes_back_whole"},
    "Repeating": {"a_retry_is_stored_once", "a_retry_with_other_words_is_refused"},
    "LookingFirst": {"a_retry_at_the_same_time_is_stored_once"},
    "Obliging": {"a_retry_with_other_words_is_refused"},
    "RowByRow": {"processes_split_no_batch"},
    "Halving": {"a_batch_is_stored_whole_or_not_at_all"},
    "TrimmingTheNewest": {"a_trim_keeps_the_newest"},
    "Counting": {"what_follows_a_trim_comes_last"},
    "ClearingNothing": {
        "a_trim_keeps_the_newest",
        "a_removal_leaves_nothing_and_the_session_goes_on",
    },
    "ClearingAll": {"a_removal_spares_other_sessions"},
    "Absent": {"threads_stay_in_their_sessions"},
    "ByStart": {"what_was_read_never_changes"},
    "WriteBehind": {"a_killed_writer_loses_nothing_that_it_was_told"},
    "WritingBack": {
        "overlapping_turns_lose_nothing",
        "turns_of_processes_lose_nothing",
        "a_trim_while_the_model_thinks_stays",
        "a_removal_while_the_model_thinks_stays",
        "a_crash_while_the_model_thinks_keeps_the_words",
    },
    "Swallowing": {"a_failed_save_reaches_the_caller"},
    "Leaking": {"a_turn_is_stored_and_given_to_the_next", "a_turn_is_given_nothing_of_others"},
    "Bare": {"a_message_comes_back_as_it_was", "data_stays_data"},
    "Sorting": {"keys_come_back_in_their_order"},
    "Normal": {"each_character_comes_back"},
    "Tidy": {"what_it_can_not_hold_is_refused"},
    "Narrow": {"a_very_long_message_comes_back"},
    "Reviving": {"data_stays_data"},
    "Pickling": {"nothing_is_pickled"},
    "Fragile": {"a_damaged_message_hides_no_other"},
    "Hiding": {"a_damaged_message_hides_no_other"},
    "Everlasting": {"a_session_expires"},
    "Strict": {"a_session_in_use_does_not_expire"},
    "Smoothing": {"an_outage_is_an_error_and_no_empty_memory"},
    "Boundless": {"the_model_is_given_no_more_than_its_window"},
}
"""Of each, the tests that must tell."""
