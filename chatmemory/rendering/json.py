"""JSON for people: indented, with its values as they are written. element/json.js equals it."""

from __future__ import annotations

import json
import re

from chatmemory.rendering.text import MAX_MARKDOWN_CHARS

_TOKENS = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|\[\s*\]|\{\s*\}|[\[\]{}:,]|[^\s"\[\]{}:,]+', re.DOTALL
)
_MAX_INDENT = 20
_MAX_GROWTH = 3
"""Longer by more than this factor, JSON is shown as it is: deep lists would be mostly spaces."""
_FREE_CHARS = 2_000
"""Any JSON may become as long, since short ones grow more."""


def formatted(text: str) -> str:
    """Indent a text if it is a JSON object or list, unless it is too long or too deep."""
    if not text.lstrip().startswith(("{", "[")) or len(text) > MAX_MARKDOWN_CHARS:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return indented(text)


def formatted_args(args: str, *, is_cut: bool) -> str:
    """Indent the arguments of a tool call, unless the model wrote something else than JSON."""
    return indented(args) if is_cut and args.startswith("{") else formatted(args)


def indented(text: str) -> str:
    """Indent JSON, which may be truncated; return it as it is if it would grow too much."""
    depth = 0
    parts: list[str] = []
    left = max(_FREE_CHARS, _MAX_GROWTH * len(text))
    for found in _TOKENS.finditer(text):
        sign = found[0]
        match sign:
            case "{" | "[":
                depth += 1
                part = sign + _new_line(depth)
            case "}" | "]":
                depth -= 1
                part = _new_line(depth) + sign
            case ",":
                part = sign + _new_line(depth)
            case ":":
                part = ": "
            case _ if sign[0] in "{[":  # empty
                part = sign[0] + sign[-1]
            case _:
                part = sign
        parts.append(part)
        left -= len(part)
        if left < 0:
            return text
    return "".join(parts)


def _new_line(depth: int) -> str:
    return "\n" + "  " * min(depth, _MAX_INDENT)
