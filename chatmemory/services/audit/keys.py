"""The keys of the audit, and the hashes that replace persons and session keys in it."""

from __future__ import annotations

from django.conf import settings as django_settings
from django.utils.crypto import salted_hmac

from chatmemory.conf import settings

Key = str | bytes


def audit_keys() -> list[Key]:
    """Return the current key, then earlier keys, which only verify."""
    if settings.AUDIT_KEY:
        return [settings.AUDIT_KEY, *settings.AUDIT_KEY_FALLBACKS]
    return [
        django_settings.SECRET_KEY,
        *settings.AUDIT_KEY_FALLBACKS,
        *django_settings.SECRET_KEY_FALLBACKS,
    ]


def key_id(key: Key) -> str:
    """Return a short identifier of a key that does not disclose it."""
    return salted_hmac("chatmemory.key", "", secret=key, algorithm="sha256").hexdigest()[:8]


def keyed_hash(text: str, key: Key) -> str:
    """Return the hash of a session's key, or of a person's scope, under this key."""
    return salted_hmac("chatmemory.audit", text, secret=key, algorithm="sha256").hexdigest()


def key_hash(text: str) -> str:
    """Return the hash under the current key."""
    return keyed_hash(text, audit_keys()[0])


def key_hashes(text: str) -> list[str]:
    """Return the hashes under all keys, to find entries from before a key rotation."""
    return [keyed_hash(text, key) for key in audit_keys()]
