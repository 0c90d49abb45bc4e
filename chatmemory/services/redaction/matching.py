"""Where stored rows contain a text: in words, tool calls, metadata and other data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from chatmemory import codec
from chatmemory.models import Message, Turn

SYNTAX = frozenset({"role", "type", "kind", "status"})
"""Names of fields whose values are not content."""

_DATA = re.compile(r"(?:data:[^,\s]{0,200},)?[A-Za-z0-9+/_-]{1000,}={0,2}")
"""Matches the data of an image or file in base64."""

_MIN_IN_DATA = 8
"""Minimum length of a text that is searched in such data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """The first place of a text in a longer one."""

    whole: str
    start: int
    end: int


def occurrence_in(whole: str, text: str) -> Occurrence | None:
    """Find a text in upper or lower case."""
    at = whole.lower().find(text.lower())
    return None if at < 0 else Occurrence(whole=whole, start=at, end=at + len(text))


def occurrence_in_message(message: Message, text: str) -> Occurrence | None:
    """Find a text in the content of a message, but not in the syntax of the stored JSON.

    A short text is not searched in the data of images and files, which contain it by chance.
    """
    others = _message_texts(message.plain())
    if len(text) < _MIN_IN_DATA:
        others = (other for other in others if not _DATA.fullmatch(other))
    return _first_occurrence(chain([message.text], others), text)


def occurrence_in_turn(turn: Turn, text: str) -> Occurrence | None:
    """Find a text in what a turn stores besides messages: the waiting message, the partial text."""
    messages: list[Any] = codec.decode_batch(turn.asked)
    if turn.asked and not messages:
        messages = [codec.decode("user", "", turn.asked)]
    asked = [turn.asked_text] if turn.asked else []
    return _first_occurrence(chain(asked, _message_texts(messages), [turn.partial]), text)


def occurrence_in_value(value: object, text: str) -> Occurrence | None:
    """Find a text in a JSON value, also in its names."""
    return _first_occurrence(_json_values(value), text)


def reason_of(turn: Turn) -> str:
    """Return the reason of the feedback on a turn that `containing` has selected."""
    annotated: Any = turn
    return annotated.reason or ""


def _first_occurrence(wholes: Iterable[str], text: str) -> Occurrence | None:
    return next(filter(None, (occurrence_in(whole, text) for whole in wholes)), None)


def _message_texts(value: object, name: str = "") -> Iterator[str]:
    """Yield the texts and numbers of a plain message, and its tool arguments with their names."""
    match value:
        case _ if name in SYNTAX:
            return
        case dict() if name == "args":
            yield from _json_values(value)
        case list():
            yield from chain.from_iterable(_message_texts(item) for item in value)
        case dict():
            yield from chain.from_iterable(_message_texts(item, key) for key, item in value.items())
        case _:
            yield from _json_values(value)


def _json_values(value: object) -> Iterator[str]:
    """Yield a JSON value as it is written, and all texts, names and numbers in it."""
    match value:
        case str():
            yield value
        case int() | float():
            yield str(value)
        case list():
            yield from chain.from_iterable(map(_json_values, value))
        case dict():
            yield codec.dump_json(value)
            yield from chain.from_iterable(map(_json_values, chain(value, value.values())))
