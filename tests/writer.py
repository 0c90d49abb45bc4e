"""Functions that append in other processes, and a check of the stored rows."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import django

from chatmemory.testing.stores import Address, Store

MAX_BATCH = 3


@dataclass(frozen=True)
class Ack:
    """The acknowledgment of a batch."""

    key: str
    client_id: str
    first_seq: int
    last_seq: int


@dataclass(frozen=True)
class StoredRow:
    """A stored row. Its text `writer.batch.place` names its writer."""

    seq: int
    text: str


def texts_of(name: str, number: int) -> list[str]:
    return [f"{name}.{number}.{place}" for place in range(1 + number % MAX_BATCH)]


def violations(
    rows: Mapping[str, Sequence[StoredRow]], counters: dict[str, int], acks: Iterable[Ack]
) -> set[str]:
    """Return the kinds of violations: lost, doubled, misordered, split, gap, counter."""
    found = set()
    at: dict[tuple[str, str], list[int]] = defaultdict(list)
    for key, stored in rows.items():
        seqs = [row.seq for row in stored]
        if seqs != list(range(1, len(seqs) + 1)):
            found.add("gap")
        if counters[key] != len(seqs):
            found.add("counter")
        if any(count > 1 for count in Counter(row.text for row in stored).values()):
            found.add("doubled")
        latest: dict[str, int] = {}
        for row in stored:
            name, number, _ = row.text.split(".")
            at[key, f"{name}.{number}"].append(row.seq)
            if latest.setdefault(name, int(number)) > int(number):
                found.add("misordered")
            latest[name] = int(number)
    for seqs in at.values():
        if seqs != list(range(seqs[0], seqs[0] + len(seqs))):
            found.add("split")
    for ack in acks:
        name, number = ack.client_id.split(".")
        expected = list(range(ack.first_seq, ack.first_seq + len(texts_of(name, int(number)))))
        if at.get((ack.key, ack.client_id)) != expected or expected[-1] != ack.last_seq:
            found.add("lost")
    return found


def append(key: str, client_id: str, messages: list[dict[str, object]]) -> tuple[int, int]:
    from chatmemory.services import SERVER, Actor, append_messages

    by = Actor.server("writer")
    done = append_messages(
        session_key=key, by=by, scope=SERVER, messages=messages, client_id=client_id
    )
    return done.first_seq, done.last_seq


def columns(message: dict[str, object]) -> dict[str, Any]:
    text = message["content"]
    return {"role": "user", "text": text, "error": "", "model": "", "tokens": 0}


def append_unlocked(key: str, client_id: str, messages: list[dict[str, object]]) -> tuple[int, int]:
    """Append without a lock, at the highest number plus one, until that is free: a wrong way."""
    from django.db import IntegrityError, OperationalError
    from django.db.models import F, Max

    from chatmemory.models import Message, Session

    session = Session.objects.get(key=key)
    seqs: list[int] = []
    for message in messages:
        while len(seqs) < len(messages):
            highest = Message.stored.filter(session=session).aggregate(Max("seq"))["seq__max"]
            try:
                Message.stored.create(session=session, seq=(highest or 0) + 1, **columns(message))
            except (IntegrityError, OperationalError):
                continue
            Session.objects.filter(pk=session.pk).update(last_seq=F("last_seq") + 1)
            seqs.append((highest or 0) + 1)
            break
    return seqs[0], seqs[-1]


def append_rewriting(
    key: str, client_id: str, messages: list[dict[str, object]]
) -> tuple[int, int]:
    """Read the whole history, append to it, and rewrite it: a wrong way."""
    from django.db import IntegrityError, OperationalError, transaction

    from chatmemory.models import Message, Session

    session = Session.objects.get(key=key)
    while True:
        texts = list(Message.stored.filter(session=session).order_by("seq").values_list("text"))
        time.sleep(0.005)  # the model thinks
        contents = [*(text for (text,) in texts), *(message["content"] for message in messages)]
        rows = [
            Message(session=session, seq=seq, **columns({"content": text}))
            for seq, text in enumerate(contents, 1)
        ]
        try:
            with transaction.atomic():
                Message.stored.filter(session=session).delete()
                Message.stored.bulk_create(rows)
                Session.objects.filter(pk=session.pk).update(last_seq=len(contents))
        except (IntegrityError, OperationalError):
            continue
        return len(contents) - len(messages) + 1, len(contents)


def append_retrying(key: str, client_id: str, messages: list[dict[str, object]]) -> tuple[int, int]:
    """Retry under another id, as if the first attempt had failed: a wrong way."""
    append(key, f"{client_id}.first", messages)
    return append(key, client_id, messages)


HOW: dict[str, Callable[[str, str, list[dict[str, object]]], tuple[int, int]]] = {
    "services": append,
    "unlocked": append_unlocked,
    "rewriting": append_rewriting,
    "retrying": append_retrying,
}


def prepare() -> None:
    """Set Django up before the workers are forked."""
    django.setup()
    from chatmemory import services as services


class Writer(Store):
    """Appends with the function that `how` names."""

    def __init__(self, how: str) -> None:
        self.append_as = HOW[how]

    def write(self, at: Address, number: int) -> tuple[str, str, int, int]:
        """Append the batch of this number; the address has the writer's name as its user."""
        name, key = at
        client_id = f"{name}.{number}"
        messages: list[dict[str, object]] = [
            {"role": "user", "content": text} for text in texts_of(name, number)
        ]
        return key, client_id, *self.append_as(key, client_id, messages)

    def release(self) -> None:
        from django.db import connections

        connections.close_all()
