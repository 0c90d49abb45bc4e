"""The columns of a session that the host chooses: their checks, and the function of NEW_SESSION."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from django.utils.timezone import is_naive

from chatmemory.access.actors import Actor
from chatmemory.access.addresses import check_length
from chatmemory.codec import check_value, dump_json, is_blank
from chatmemory.conf import settings
from chatmemory.errors import BadInput

logger = logging.getLogger(__name__)

MAX_TITLE_CHARS = 200
MAX_METADATA_BYTES = 8_192
"""As JSON. Small, since a list of sessions contains the metadata of each."""
MAX_FILTER_CHARS = 200
MAX_TTL_SECONDS = 2**31 - 1
"""68 years; what a column of 32 bits can hold."""

ENDS = frozenset({"expires_at", "ttl_seconds"})
FIELDS = ENDS | {"title", "instructions", "metadata"}


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED: Final = Unchanged.UNCHANGED
"""Leaves a column as it is, where None is a value."""


def fields_of_host(path: str, by: Actor, session_key: str, title: str) -> dict[str, object]:
    """Return what the function of NEW_SESSION gives to a person's new session.

    Raises the errors of the function, and ImproperlyConfigured if its result cannot be stored.
    """
    given: object = import_string(path)(by, {"session_key": session_key, "title": title})
    try:
        return _checked(given)
    except (BadInput, TypeError) as error:
        problem = str(error)
        if isinstance(error, BadInput):  # its text can contain a key of the metadata
            problem = f"{error.code} in {error.field.partition('.')[0]}"
        logger.error("NEW_SESSION returned a value that cannot be stored: %s", problem)  # noqa: TRY400
        raise ImproperlyConfigured("NEW_SESSION returned a value that cannot be stored") from error


def _checked(given: object) -> dict[str, object]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"a {type(given).__name__} instead of a dict or None")
    if unknown := set(given).difference(FIELDS):
        raise TypeError(f"unknown keys: {', '.join(sorted(map(repr, unknown)))}")
    fields = dict(given)
    check_fields(fields)
    return fields


def is_same(old: object, new: object) -> bool:
    """Return whether two values are stored alike; in Python, 0 equals False and 1.0."""
    if isinstance(old, dict) and isinstance(new, dict):
        return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
    return old == new


def check_fields(fields: Mapping[str, object]) -> None:
    """Check values of `FIELDS`, such as for `open_session`. Raises BadInput, TypeError."""
    for name, value in fields.items():
        match name:
            case "title":
                check_title(value)
            case "instructions":
                _check_type(name, value, str)
                check_value(value, name)
            case "metadata":
                _check_metadata(value)
            case "expires_at" if value is not None:
                _check_end(value)
            case "ttl_seconds" if value is not None:
                _check_ttl(value)


def check_title(title: object) -> None:
    """Check that every database can store a title, and that people see it; "" means no title.

    Raises BadInput; TypeError if it is not a str.
    """
    check_length("title", title, 0, MAX_TITLE_CHARS)
    check_value(title, "title")
    if title and is_blank(str(title)):
        raise BadInput("title has no visible character.", code="empty", field="title")


def _check_metadata(metadata: object) -> None:
    _check_type("metadata", metadata, dict)
    check_value(metadata, "metadata")
    if len(dump_json(metadata).encode()) > MAX_METADATA_BYTES:
        raise BadInput(
            f"metadata must have at most {MAX_METADATA_BYTES} bytes as JSON.",
            code="too_large",
            field="metadata",
            limit=MAX_METADATA_BYTES,
        )


def check_metadata_filter(metadata: Mapping[str, str]) -> None:
    """Check the keys and texts by which sessions are selected. Raises BadInput, TypeError."""
    for key, text in metadata.items():
        if key not in settings.METADATA_FILTERS:
            message = "metadata can be filtered only by the keys of METADATA_FILTERS."
            raise BadInput(message, field="metadata")
        check_length("metadata", text, 1, MAX_FILTER_CHARS)
        check_value(text, "metadata")


def _check_end(expires_at: object) -> None:
    if not isinstance(expires_at, datetime):
        raise TypeError(f"expires_at must be a datetime, not {type(expires_at).__name__}")
    if is_naive(expires_at) or expires_at <= datetime.now(UTC):
        raise BadInput("expires_at must be in the future and have a time zone.", field="expires_at")


def _check_ttl(seconds: object) -> None:
    """Check a session's lifetime after its last message."""
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise TypeError(f"ttl_seconds must be an integer, not {type(seconds).__name__}")
    if not 1 <= seconds <= MAX_TTL_SECONDS:
        message = f"ttl_seconds must be between 1 and {MAX_TTL_SECONDS}."
        raise BadInput(message, code="bad_number", field="ttl_seconds", limit=MAX_TTL_SECONDS)


def _check_type(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"{name} must be a {expected.__name__}, not {type(value).__name__}")
