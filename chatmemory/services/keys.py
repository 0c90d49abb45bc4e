"""The keys of the audit, and the hashes by which it names persons and session keys."""

from __future__ import annotations

from django.conf import settings as django_settings
from django.utils.crypto import salted_hmac

from chatmemory.conf import settings

Key = str | bytes


def audit_keys() -> list[Key]:
    """The key in use, then the earlier ones, which only recognize what they made."""
    if settings.AUDIT_KEY:
        return [settings.AUDIT_KEY, *settings.AUDIT_KEY_FALLBACKS]
    return [
        django_settings.SECRET_KEY,
        *settings.AUDIT_KEY_FALLBACKS,
        *django_settings.SECRET_KEY_FALLBACKS,
    ]


def key_id(key: Key) -> str:
    """A short name of a key that does not disclose it."""
    return salted_hmac("chatmemory.key", "", secret=key, algorithm="sha256").hexdigest()[:8]


def keyed_hash(text: str, key: Key) -> str:
    """A session's key, or a person's scope, as the audit stores it under this key."""
    return salted_hmac("chatmemory.audit", text, secret=key, algorithm="sha256").hexdigest()


def key_hash(text: str) -> str:
    """The hash under the key in use."""
    return keyed_hash(text, audit_keys()[0])


def key_hashes(text: str) -> list[str]:
    """The hashes under all keys, to find what was stored before a rotation."""
    return [keyed_hash(text, key) for key in audit_keys()]
