"""Validate frames against the published schema."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.validators import extend

import chatmemory

SCHEMA: dict[str, Any] = json.loads(
    (Path(chatmemory.__file__).parent / "protocol.schema.json").read_text()
)

# The server reads 1.0 as a float, so it is not an integer here.
_types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
_Validator = extend(Draft202012Validator, type_checker=_types)


def _is_time(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


_formats = FormatChecker(())
_formats.checks("date-time", raises=ValueError)(_is_time)


def kinds(side: str) -> list[str]:
    """Return the types of frames from the `client` or from the `server`."""
    return [
        choice["$ref"].rpartition("/")[2] for choice in SCHEMA["$defs"][f"from_{side}"]["oneOf"]
    ]


def fault_of(side: str, frame: object) -> str:
    """Return why this is not a valid frame of that side; empty if it is valid.

    A field that the schema does not name is a fault, also in a frame of the server: clients ignore
    it, but it is undocumented.
    """
    kind = frame.get("type") if isinstance(frame, dict) else None
    if kind not in kinds(side):
        return f"not a frame of the {side}: {kind!r}"
    assert isinstance(frame, dict)
    faults = [
        f"{kind}.{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"
        for error in _validator(kind).iter_errors(frame)
    ]
    if side == "server" and kind == "ok":
        rows = [{"type": "message", **row} for row in frame.get("messages", ())]
        faults += filter(None, (fault_of("server", row) for row in rows))
    return "; ".join(faults)


def check(side: str, frame: object) -> None:
    """Fail if this is not a valid frame of that side."""
    fault = fault_of(side, frame)
    assert not fault, fault


@cache
def _validator(kind: str) -> Any:
    schema = {"$ref": f"#/$defs/{kind}", "$defs": _strict(SCHEMA["$defs"])}
    return _Validator(schema, format_checker=_formats)


def _strict(schema: Any) -> Any:
    """Forbid fields that the schema does not name, and let `$` match only at the end, as ECMA."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: _strict(part) for name, part in schema.items()}
    if "properties" in schema and isinstance(schema.get("type"), str | list):
        strict["additionalProperties"] = False
    if isinstance(schema.get("pattern"), str):
        strict["pattern"] = schema["pattern"].replace("$", r"\Z")
    return strict
