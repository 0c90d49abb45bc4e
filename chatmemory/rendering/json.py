"""JSON as people read it: indented. The values stay as they are written."""

from __future__ import annotations

import json
import re

_TOKENS = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|\[\s*\]|\{\s*\}|[\[\]{}:,]|[^\s"\[\]{}:,]+', re.DOTALL
)
_MAX_INDENT = 20


def formatted(text: str) -> str:
    """Indent a text if it is a JSON object or list, unless it is too deep for Python's parser."""
    if not text.lstrip().startswith(("{", "[")):
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
    """Indent JSON, which may be truncated."""
    depth = 0
    parts: list[str] = []
    for sign in _TOKENS.findall(text):
        match sign:
            case "{" | "[":
                depth += 1
                parts += [sign, _line(depth)]
            case "}" | "]":
                depth -= 1
                parts += [_line(depth), sign]
            case ",":
                parts += [sign, _line(depth)]
            case ":":
                parts.append(": ")
            case _ if sign[0] in "{[":  # empty
                parts.append(sign[0] + sign[-1])
            case _:
                parts.append(sign)
    return "".join(parts)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, _MAX_INDENT)
