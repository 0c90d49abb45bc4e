"""The message authentication code (MAC) of an audit entry protects it from its insert on.

It covers each column but the primary key, which the database assigns later; the seal covers that.
A random nonce makes each MAC unique, and a unique index rejects a copied entry.
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
from chatmemory.services.audit.keys import Key, audit_keys, key_id

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
"""The columns that a MAC covers. A change would invalidate all stored MACs and seals."""


class MacCheck(Enum):
    """What a MAC shows."""

    GENUINE = auto()
    FORGED = auto()
    """The entry was edited, or inserted without the key."""
    UNKNOWN_KEY = auto()
    """The entry names a key that is not configured."""


def mac_of(entry: AuditEntry) -> str:
    """Return a MAC under the current key for an entry with all its columns set."""
    key = audit_keys()[0]
    nonce = secrets.token_hex(8)
    columns = {name: getattr(entry, name) for name in COVERED}
    return f"{key_id(key)}.{nonce}.{_mac_digest(key, nonce, columns)}"


class Macs:
    """Verify MACs under a set of keys."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = {key_id(key): key for key in keys}

    def check(self, entry: Mapping[str, Any]) -> MacCheck:
        """Verify an entry, given by its columns."""
        name, _, rest = entry["mac"].partition(".")
        nonce, _, digest = rest.partition(".")
        if not digest:
            return MacCheck.FORGED
        if name not in self.keys:
            return MacCheck.UNKNOWN_KEY
        expected = _mac_digest(self.keys[name], nonce, entry)
        return MacCheck.GENUINE if constant_time_compare(expected, digest) else MacCheck.FORGED


def key_id_of(entry: AuditEntry) -> str:
    """Return the id of the key under which an entry was inserted."""
    return entry.mac.partition(".")[0]


def utc_text(time: datetime) -> str:
    """Format a time in UTC, independently of database and time zone."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def _mac_digest(key: Key, nonce: str, entry: Mapping[str, Any]) -> str:
    columns = {name: entry[name] for name in COVERED}
    columns["created_at"] = utc_text(columns["created_at"])
    covered = json.dumps([nonce, columns], sort_keys=True)
    return salted_hmac("chatmemory.mac", covered, secret=key, algorithm="sha256").hexdigest()
