"""What can be the address of a session."""

from __future__ import annotations

from chatmemory.codec import check_value
from chatmemory.errors import BadInput

MAX_KEY_CHARS = 200
MAX_SEQ = 2**62
"""No message's number is above; a database takes it."""


def check_session_key(key: str) -> None:
    """See that every database can hold this key. Raises BadInput; TypeError if it is no text."""
    check_length("key", key, 1, MAX_KEY_CHARS)
    check_value(key, "key")


def check_length(field: str, value: str, least: int, most: int) -> None:
    """See that a text has so many characters. Raises BadInput; TypeError if it is no text."""
    if not isinstance(value, str):
        raise TypeError(f"{field} is text, not {type(value).__name__}")
    if not least <= len(value) <= most:
        raise BadInput(f"A {field} has {least} to {most} characters.", field=field, limit=most)
