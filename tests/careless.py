"""Faulty stores: each breaks a promise, which the contract must report."""

# ruff: noqa: S608  # only our own names

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

from chatmemory.testing.stores import Address, Message, Model, Store, StoreFactory
from tests.shelf import IN_SESSION, Refused, Shelf

ROUND_TRIP_SECONDS = 0.002


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


class SharedBuffer(Store):
    """Shares one list in the process between all sessions."""

    messages: ClassVar[list[Message]] = []

    def __init__(self, path: str) -> None:
        """Clear the list, as a new process would. `path` is unused."""
        self.messages.clear()

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        self.messages.extend(messages)

    def read(self, at: Address) -> list[Message]:
        return list(self.messages)

    def clear(self, at: Address) -> None:
        self.messages.clear()

    def turn(self, at: Address, text: str, model: Model) -> str:
        reply = model([*(message["content"] for message in self.messages), text])
        self.messages.extend([user(text), assistant(reply)])
        return reply


class Rewritten(Store):
    """Stores each session as one value, which it reads, extends and writes back."""

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
    """Ignores the user of an address."""

    def store(self, at: Address, messages: Sequence[Message], **more: Any) -> int:
        return super().store(at._replace(user=""), messages, **more)

    def read(self, at: Address) -> list[Message]:
        return super().read(at._replace(user=""))


class Newest(Shelf):
    """Reads the newest message first."""

    def read(self, at: Address) -> list[Message]:
        return super().read(at)[::-1]


class CutBatches(Shelf):
    """Stores only the first ten messages of a batch."""

    def store(self, at: Address, messages: Sequence[Message], **more: Any) -> int:
        return super().store(at, messages[:10], **more)


class CutReads(Shelf):
    """Reads at most 1,000 messages."""

    def read(self, at: Address) -> list[Message]:
        return super().read(at)[:1_000]


class Repeating(Shelf):
    """Stores a retry as another write."""

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        self.append(at, messages)


class LookingFirst(Shelf):
    """Checks for a repeat and writes in two transactions."""

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        bodies = [self.dump(message) for message in messages]
        with self.locked() as cursor:
            if self.is_stored(cursor, at, bodies, client_id):
                return
        time.sleep(ROUND_TRIP_SECONDS)
        with suppress(Refused):
            self.store(at, messages)


class TrustingIds(Shelf):
    """Treats a write with a known id as a repeat, without comparing the content."""

    def append_once(self, at: Address, messages: Sequence[Message], client_id: str) -> None:
        with suppress(Refused):
            super().append_once(at, messages, client_id)


class RowByRow(Shelf):
    """Writes each message of a batch in its own transaction."""

    def store(self, at: Address, messages: Sequence[Message], **more: Any) -> int:
        for message in messages:
            time.sleep(ROUND_TRIP_SECONDS)
            epoch = super().store(at, [message], **more)
        return epoch


class PartialBatches(Shelf):
    """Stores a batch up to the first message that it cannot store."""

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        for message in messages:
            self.store(at, [message])


class TrimmingTheNewest(Shelf):
    """Keeps the oldest messages at a trim."""

    def trim(self, at: Address, keep_last: int) -> None:
        with self.locked() as cursor:
            cursor.execute(f"DELETE FROM message WHERE {IN_SESSION} AND seq > ?", [*at, keep_last])


class Counting(Shelf):
    """Numbers rows by their count, so that it assigns the numbers of trimmed rows again."""

    def begin(self, cursor: sqlite3.Cursor, at: Address, epoch: int | None) -> tuple[int, int]:
        _, now = super().begin(cursor, at, epoch)
        (count,) = cursor.execute(f"SELECT count(*) FROM message WHERE {IN_SESSION}", at).fetchone()
        return count, now

    def trim(self, at: Address, keep_last: int) -> None:
        with self.locked() as cursor:
            (last,) = cursor.execute(f"SELECT last FROM session WHERE {IN_SESSION}", at).fetchone()
            cursor.execute(
                f"DELETE FROM message WHERE {IN_SESSION} AND seq <= ?", [*at, last - keep_last]
            )

    def insert(self, cursor: sqlite3.Cursor, *arguments: Any) -> None:
        with suppress(sqlite3.IntegrityError):
            super().insert(cursor, *arguments)


class ClearingNothing(Shelf):
    """Clears nothing, and raises no error."""

    def remove(self, at: Address, change: str, value: int) -> None:
        pass


class ClearingAll(Shelf):
    """Clears the sessions of all users."""

    def remove(self, at: Address, change: str, value: int) -> None:
        with self.locked() as cursor:
            cursor.execute(f"UPDATE session SET {change}", [value])


class SharedAddress(Shelf):
    """Keeps the address in an attribute that all threads share."""

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        self.at = at
        time.sleep(ROUND_TRIP_SECONDS)
        super().append(self.at, messages)


class OwnClocks(Shelf):
    """Orders by the clock of each process; those of all but the first writer are behind."""

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        process = os.getpid()
        first = next((message["process"] for message in super().read(at)), process)
        now = time.time() - (0 if process == first else 1_000_000)
        stamp = {"at": now, "process": process}
        super().append(at, [{**message, **stamp} for message in messages])

    def read(self, at: Address) -> list[Message]:
        return sorted(super().read(at), key=lambda message: message.get("at", 0))


class WriteBehind(Shelf):
    """Acknowledges a batch before it is written."""

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
    """Rewrites the history of the turn's start, with the turn."""

    def turn(self, at: Address, text: str, model: Model) -> str:
        before = [*self.read(at), user(text)]
        reply = model([str(message["content"]) for message in before])
        self.clear(at)
        self.store(at, [*before, assistant(reply)])
        return reply


class Swallowing(Shelf):
    """Ignores the error if a turn cannot be stored."""

    def turn(self, at: Address, text: str, model: Model) -> str:
        reply = model([str(message["content"]) for message in self.read(at)] + [text])
        with suppress(sqlite3.OperationalError):
            self.store(at, [user(text), assistant(reply)])
        return reply


class Leaking(Shelf):
    """Has one window for all sessions."""

    seen: ClassVar[list[str]] = []

    def turn(self, at: Address, text: str, model: Model) -> str:
        self.seen.append(text)
        reply = model(self.seen)
        self.store(at, [user(text), assistant(reply)])
        return reply


class Bare(Shelf):
    """Stores only role and content."""

    def dump(self, message: Message) -> str:
        return super().dump({name: message[name] for name in ("role", "content")})


class Sorting(Shelf):
    """Sorts the keys of a message."""

    def dump(self, message: Message) -> str:
        return json.dumps(message, sort_keys=True)


class Normal(Shelf):
    """Normalizes the text."""

    def dump(self, message: Message) -> str:
        return super().dump(
            {**message, "content": unicodedata.normalize("NFC", message["content"])}
        )


class Tidy(Shelf):
    """Silently drops characters that it cannot store."""

    def dump(self, message: Message) -> str:
        text = message["content"].replace("\0", "").encode(errors="ignore").decode()
        return super().dump({**message, "content": text})


class Narrow(Shelf):
    """Truncates texts to 65,535 characters."""

    def dump(self, message: Message) -> str:
        return super().dump({**message, "content": message["content"][:65_535]})


class Reviving(Shelf):
    """Deserializes data that look like an object."""

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
    """Raises if one message is damaged."""

    def load(self, body: str) -> Message:
        loaded: Message = json.loads(body)
        return loaded


class Hiding(Shelf):
    """Silently drops damaged messages."""

    def read(self, at: Address) -> list[Message]:
        return [found for found in super().read(at) if found["content"] != "(damaged)"]


class Everlasting(Shelf):
    """Expires no session."""

    def is_expired(self, used: float) -> bool:
        return False


class Strict(Shelf):
    """Counts the lifetime of a session from its first message."""

    def age(self, at: Address, seconds: float) -> None:
        with self.locked() as cursor:
            cursor.execute(
                "UPDATE session SET used ="
                f" (SELECT -count(*) * ? + ? FROM message WHERE {IN_SESSION}) WHERE {IN_SESSION}",
                [seconds, time.time(), *at, *at],
            )


class Smoothing(Shelf):
    """Returns an empty list if the database fails."""

    def read(self, at: Address) -> list[Message]:
        try:
            return super().read(at)
        except sqlite3.OperationalError:
            return []


class Boundless(Shelf):
    """Gives the model the whole history."""

    def bounded(self, messages: int) -> Store:
        return Shelf(self.path)


def make(fault: str, path: str) -> Store:
    """Make the store of this class name."""
    store: Store = {"Shelf": Shelf, **globals()}[fault](path=path)
    return store


def factory_of(fault: str, folder: Path) -> StoreFactory:
    """Return the factory of the store of this class name."""
    return StoreFactory(
        path="tests.careless:make", arguments={"fault": fault, "path": str(folder / "memory")}
    )


FAILING_TESTS: dict[str, set[str]] = {
    "SharedBuffer": {
        "sessions_are_separate",
        "users_are_separate",
        "threads_stay_in_their_sessions",
        "a_removal_changes_no_other_session",
        "the_model_is_given_nothing_of_others",
        "the_memory_survives_its_process",
        "a_new_process_knows_earlier_messages",
    },
    "Rewritten": {
        "threads_lose_nothing",
        "processes_lose_nothing",
        "overlapping_turns_lose_nothing",
        "a_removal_while_the_model_thinks_remains",
    },
    "OneForAll": {"users_are_separate"},
    "Newest": {"messages_are_read_in_order"},
    "CutBatches": {"a_large_batch_is_stored_completely"},
    "CutReads": {"a_long_history_is_read_completely"},
    "Repeating": {"a_retry_is_stored_once", "a_retry_with_other_content_is_refused"},
    "LookingFirst": {"concurrent_retries_are_stored_once"},
    "TrustingIds": {"a_retry_with_other_content_is_refused"},
    "RowByRow": {"processes_split_no_batch"},
    "PartialBatches": {"a_batch_is_stored_completely_or_not_at_all"},
    "TrimmingTheNewest": {"a_trim_keeps_the_newest"},
    "Counting": {"a_message_after_a_trim_is_the_last"},
    "ClearingNothing": {
        "a_trim_keeps_the_newest",
        "a_removal_leaves_nothing_and_the_session_continues",
    },
    "ClearingAll": {"a_removal_changes_no_other_session"},
    "SharedAddress": {"threads_stay_in_their_sessions"},
    "OwnClocks": {"rows_that_were_read_never_change"},
    "WriteBehind": {"a_killed_writer_loses_no_acknowledged_batch"},
    "WritingBack": {
        "overlapping_turns_lose_nothing",
        "turns_of_processes_lose_nothing",
        "a_trim_while_the_model_thinks_remains",
        "a_removal_while_the_model_thinks_remains",
        "a_crash_while_the_model_thinks_keeps_the_user_message",
    },
    "Swallowing": {"a_failed_save_reaches_the_caller"},
    "Leaking": {"a_turn_is_stored_and_given_to_the_next", "the_model_is_given_nothing_of_others"},
    "Bare": {"a_message_is_read_as_it_was_stored", "data_stays_data"},
    "Sorting": {"keys_keep_their_order"},
    "Normal": {"each_character_is_preserved"},
    "Tidy": {"unstorable_text_is_kept_or_refused"},
    "Narrow": {"a_very_long_message_is_preserved"},
    "Reviving": {"data_stays_data"},
    "Pickling": {"nothing_is_pickled"},
    "Fragile": {"a_damaged_message_hides_no_other"},
    "Hiding": {"a_damaged_message_hides_no_other"},
    "Everlasting": {"a_session_expires"},
    "Strict": {"a_session_in_use_does_not_expire"},
    "Smoothing": {"an_outage_is_an_error_not_an_empty_memory"},
    "Boundless": {"the_model_is_given_no_more_than_its_window"},
}
"""For each store, the tests of the contract that must fail."""
