"""The message authentication code (MAC) of an audit entry, which protects it from its insert on.

It covers each column but the primary key, which the database assigns after the MAC is made: the
seal covers that. A random nonce makes each MAC unique, and a unique index refuses a copy.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any

from django.utils.crypto import constant_time_compare, salted_hmac

from chatmemory.models import AuditEntry
from chatmemory.services.keys import Key, audit_keys, key_id

COVERED = (
    "actor_kind",
    "actor_id",
    "actor_label",
    "action",
    "session_pk",
    "key_hash",
    "reason",
    "from_seq",
    "to_seq",
    "counts",
    "created_at",
)
"""The columns that a MAC covers. Another set would break all MACs and seals there are."""


class Proof(Enum):
    """What a MAC shows."""

    GENUINE = auto()
    FORGED = auto()
    """The entry was edited, or inserted without the key."""
    UNKNOWN_KEY = auto()
    """It names a key that is not given."""


def mac_of(entry: AuditEntry) -> str:
    """A MAC for an entry whose columns are all set, under the key in use."""
    key = audit_keys()[0]
    nonce = secrets.token_hex(8)
    columns = {name: getattr(entry, name) for name in COVERED}
    return f"{key_id(key)}.{nonce}.{_digest(key, nonce, columns)}"


class Macs:
    """Checks MACs under a set of keys."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = {key_id(key): key for key in keys}

    def check(self, entry: Mapping[str, Any]) -> Proof:
        """Check an entry, given by its columns."""
        name, _, rest = entry["mac"].partition(".")
        nonce, _, digest = rest.partition(".")
        if not digest:
            return Proof.FORGED
        if name not in self.keys:
            return Proof.UNKNOWN_KEY
        expected = _digest(self.keys[name], nonce, entry)
        return Proof.GENUINE if constant_time_compare(expected, digest) else Proof.FORGED


def key_id_of(entry: AuditEntry) -> str:
    """The id of the key under which an entry was inserted."""
    return entry.mac.partition(".")[0]


def written(time: datetime) -> str:
    """A time in the same form on every database, whatever the time zone of the connection."""
    return (time if time.tzinfo is None else time.astimezone(UTC)).isoformat(
        timespec="microseconds"
    )


def _digest(key: Key, nonce: str, entry: Mapping[str, Any]) -> str:
    columns = {name: entry[name] for name in COVERED}
    columns["created_at"] = written(columns["created_at"])
    covered = json.dumps([nonce, columns], sort_keys=True)
    return salted_hmac("chatmemory.mac", covered, secret=key, algorithm="sha256").hexdigest()
