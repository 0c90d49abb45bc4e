"""Strict JSON: the reader for outside input, and the compact writer."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import NoReturn

from chatmemory.codec.checks import quoted
from chatmemory.errors import BadInput

MAX_INPUT_DEPTH = 32
"""Maximum nesting depth of JSON from clients."""

MAX_SAFE_INTEGER = 2**53
"""Above this, JavaScript rounds integers."""

_MAX_INTEGER_DIGITS = 4_300  # the limit of Python's int()

# The possessive quantifiers (*+) prevent backtracking, which takes quadratic time for a string
# without an end.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


def parse_json(data: str | bytes, *, is_ours: bool = False) -> object:
    """Parse JSON in linear time, more strictly than RFC 8259.

    Rejects duplicate keys, NaN, infinities, and integers that JavaScript would round; `is_ours`
    allows large integers, for files that the app wrote. Bytes are UTF-8. Does not check strings:
    see `check_text` and `check_value`.
    Raises BadInput (bad_json, bad_number, too_deep).
    """
    if isinstance(data, bytes):
        try:
            data = data.decode()
        except UnicodeDecodeError as error:
            raise BadInput(
                f"The input is not valid UTF-8 at byte {error.start}.", code="bad_json"
            ) from error
    check_depth(data, MAX_INPUT_DEPTH)
    try:
        return (_OWN_READER if is_ours else _INPUT_READER).decode(data)
    except json.JSONDecodeError as error:
        message = f"The input is not valid JSON: {error.msg} (character {error.pos})."
        raise BadInput(message, code="bad_json") from error


def dump_json(value: object) -> str:
    """Serialize as compact JSON in key order. Raises ValueError for NaN and infinities."""
    return _WRITER.encode(value)


def check_depth(text: str, limit: int) -> None:
    """Raise BadInput (too_deep) before a parser recurses into the text."""
    # Most texts have few brackets, and counting them is faster than the scan.
    if text.count("[") + text.count("{") <= limit:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "[{":
            depth += 1
        elif match[0] in "]}":
            depth -= 1
        if depth > limit:
            raise BadInput(
                f"The JSON is nested deeper than {limit} levels.", code="too_deep", limit=limit
            )


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        (duplicate, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise BadInput(f"Duplicate key {quoted(duplicate)} in one object.", code="bad_json")
    return result


def _safe_integer(digits: str) -> int:
    # The length first: int() raises another error above _MAX_INTEGER_DIGITS.
    if len(digits) > len(str(-MAX_SAFE_INTEGER)) or abs(int(digits)) > MAX_SAFE_INTEGER:
        _reject_number(digits)
    return int(digits)


def _readable_integer(digits: str) -> int:
    if len(digits) > _MAX_INTEGER_DIGITS:
        _reject_number(digits)
    return int(digits)


def _finite_number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        _reject_number(digits)
    return number


def _reject_number(digits: str) -> NoReturn:
    raise BadInput(f"The number {quoted(digits)} is out of range.", code="bad_number")


_INPUT_READER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_safe_integer,
    parse_float=_finite_number,
    parse_constant=_reject_number,
)

_OWN_READER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_readable_integer,
    parse_float=_finite_number,
    parse_constant=_reject_number,
)

BODY_READER = json.JSONDecoder(parse_float=_finite_number, parse_constant=_reject_number)
"""Reads the bodies of stored messages, whose integers may be of any size."""

_WRITER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
