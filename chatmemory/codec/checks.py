"""Checks of text, keys and ids from outside the app."""

from __future__ import annotations

import re
import secrets
import unicodedata
import uuid

from chatmemory.conf import settings
from chatmemory.errors import BadInput, NotFound, UnknownTurn

NOT_IN_KEYS = "[^A-Za-z0-9_.:@-]"
"""Matches a character that keys in URLs cannot contain; a regular expression for databases."""

HIDDEN = "\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f"
"""Ranges of characters that change the direction of text or are invisible."""

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Matches what not every database can store: NUL and lone surrogates."""

CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Matches control characters except TAB, LF and CR, and lone surrogates."""

_MAX_SHOWN = 80  # characters of foreign input in an error text
_BLANKS = "\u115f\u1160\u2800\u3164\uffa0"  # blank, but Unicode calls them letters or symbols

_CLIENT_ID = re.compile(r"[A-Za-z0-9\-_.:]{1,64}")
_KEY = re.compile(r"[A-Za-z0-9\-_.:@]{1,200}")


def storable(text: str) -> str:
    """Replace NUL and lone surrogates by U+FFFD, so that every database can store the text."""
    return UNSTORABLE.sub("\ufffd", text)


def label(text: str, max_chars: int) -> str:
    """Remove unprintable characters and truncate, for a one-line label."""
    # Truncated first too, so that a long text costs no more than a short one.
    return "".join(filter(str.isprintable, text[: 8 * max_chars]))[:max_chars]


def check_text(text: object, *, field: str = "text", max_chars: int | None = None) -> str:
    """Return text from a person unchanged, or raise BadInput.

    `max_chars` is MAX_MESSAGE_CHARS by default.
    Raises BadInput (bad_field, too_large, bad_text, empty).
    """
    limit = settings.MAX_MESSAGE_CHARS if max_chars is None else max_chars
    if not isinstance(text, str):
        raise BadInput(f"{field} must be a string.", field=field)
    if len(text) > limit:
        message = f"{field} has {len(text)} characters; the limit is {limit}."
        raise BadInput(message, code="too_large", field=field, limit=limit)
    if found := CONTROL.search(text):
        raise bad_text(found, field)
    if is_blank(text):
        raise BadInput(f"{field} is empty.", code="empty", field=field)
    return text


def is_blank(text: str) -> bool:
    """Whether no character of the text is visible."""
    return all(map(_is_invisible, text))


def check_storable(text: str, field: str) -> str:
    """Return the text unchanged if every database can store it, else raise BadInput."""
    if found := UNSTORABLE.search(text):
        raise bad_text(found, field)
    return text


def check_client_id(value: object, *, field: str = "client_id") -> str:
    """Return a valid client_id unchanged, else raise BadInput."""
    if not isinstance(value, str) or not _CLIENT_ID.fullmatch(value):
        raise BadInput(f"{field} must be 1 to 64 characters of A-Z a-z 0-9 - _ . :", field=field)
    return value


def new_client_id() -> str:
    """Return a random client_id: 128 bits in 22 characters, since rows and indexes contain it."""
    return secrets.token_urlsafe(16)


CLIENT_PREFIX = "ui:"
"""How the keys begin under which foreign chat clients keep their own ids."""


def check_key(value: object, *, field: str = "key") -> str:
    """Return a valid session key unchanged, else raise BadInput."""
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise BadInput(f"{field} must be 1 to 200 characters of A-Z a-z 0-9 - _ . : @", field=field)
    return value


def unknown_field(name: str) -> BadInput:
    """Return the error for an unknown field; it quotes the name escaped and truncated."""
    field = quoted(name)
    return BadInput(f"Unknown field {field}.", code="unknown_field", field=field)


def key_of_address(text: str) -> str:
    """Return the key from a URL unchanged. Raises NotFound if invalid, as for an unused key."""
    if not _KEY.fullmatch(text):
        raise NotFound
    return text


def turn_of_address(text: str) -> str:
    """Return the turn from a URL unchanged. Raises UnknownTurn if invalid."""
    if not _CLIENT_ID.fullmatch(text):
        raise UnknownTurn
    return text


def is_new_key(key: str) -> bool:
    """Whether the key is a version-4 UUID, so that no other user can have chosen it by chance."""
    try:
        parsed = uuid.UUID(key)
    except ValueError:
        return False
    return parsed.version == 4 and str(parsed) == key.lower()


def path_of(*parts: str | int) -> str:
    """Format the path of a value, such as `messages[3].additional_kwargs.a`."""
    shown = (
        f"[{part}]" if isinstance(part, int) else f".{quoted(part)}" for part in parts if part != ""
    )
    return "".join(shown).removeprefix(".")[:_MAX_SHOWN]


def _is_invisible(char: str) -> bool:
    return char.isspace() or char in _BLANKS or unicodedata.category(char) == "Cf"


def bad_text(found: re.Match[str], field: str) -> BadInput:
    """Return the error for a forbidden character, with its code point and position."""
    message = f"{field} contains U+{ord(found[0]):04X} at position {found.start()}; remove it."
    return BadInput(message, code="bad_text", field=field)


def quoted(text: str) -> str:
    """Escape and truncate foreign text for an error text."""
    return ascii(text[:_MAX_SHOWN])[1:-1][:_MAX_SHOWN]
