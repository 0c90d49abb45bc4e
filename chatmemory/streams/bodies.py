"""The bodies of foreign clients: only what a message needs is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request

from chatmemory.errors import BadInput

MAX_BODY_BYTES = 4 * 1024 * 1024
"""These clients send the whole chat with each message, unless the page trims it."""


def json_body(request: Request) -> Mapping[str, Any]:
    """Parse a body. Raises BadInput.

    Not by the strict parser of REST: a chat that the client repeats is ignored, and may have what
    that parser refuses.
    """
    body = request.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise BadInput(
            f"The body must have at most {MAX_BODY_BYTES} bytes. Send only the last message.",
            code="too_large",
            limit=MAX_BODY_BYTES,
        )
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadInput("The body must be JSON.", code="bad_json") from error
    if not isinstance(found, dict):
        raise BadInput("The body must be a JSON object.", code="bad_shape")
    return found


def text_field(source: Mapping[str, Any], name: str, *, is_required: bool = False) -> str | None:
    """Return a text of an object; None if it is missing or null. Raises BadInput."""
    value = source.get(name)
    if value is None and not is_required:
        return None
    if not isinstance(value, str):
        raise BadInput(f"{name} must be a string.", field=name)
    return value


def number_field(source: Mapping[str, Any], name: str) -> int | None:
    """Return a number of an object; None if it is missing or null. Raises BadInput."""
    value = source.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise BadInput(f"{name} must be an integer of 0 or more.", field=name)
    return value


def last_message(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the last of `messages`, which must be a user's. Raises BadInput."""
    messages = source.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise BadInput("messages must be a list that ends with a message.", field="messages")
    last: Mapping[str, Any] = messages[-1]
    if last.get("role") != "user":
        raise BadInput("The last message must be the user's.", field="messages")
    return last
