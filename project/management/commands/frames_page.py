"""The page of the frames, from their schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

import chatmemory

INTRO = """# The frames of `chatmemory.v1`

Every frame with every field; the [protocol](protocol.md) says what they are for. Made by
`manage.py frames_page` from the [JSON Schema](../chatmemory/protocol.schema.json), which comes with
the package. Required fields are **bold**.
"""

Schema = Mapping[str, Any]


class Command(BaseCommand):
    """Prints the page."""

    help = __doc__

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(page(), ending="")


def page() -> str:
    """The page as Markdown: each side's frames, in the order of the schema."""
    file = Path(chatmemory.__file__).parent / "protocol.schema.json"
    schemas: Mapping[str, Schema] = json.loads(file.read_text())["$defs"]
    parts = [INTRO]
    for side in ("client", "server"):
        parts.append(f"## From the {side}\n")
        for choice in schemas[f"from_{side}"]["oneOf"]:
            name = _name(choice)
            parts.append(f"### `{name}`\n\n{schemas[name]['description']}\n")
            parts.append(_table(schemas, name))
    return "\n".join(parts)


def _table(schemas: Mapping[str, Schema], name: str) -> str:
    lines = ["| field | value | meaning |", "| --- | --- | --- |"]
    frame = schemas[name]
    for field, schema in frame["properties"].items():
        if field == "type":
            continue
        shown = f"**{field}**" if field in frame["required"] else field
        whole = {**schemas[_name(schema)], **schema} if "$ref" in schema else schema
        meaning = whole.get("description", "")
        lines.append(f"| {shown} | {_value(schemas, whole)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _value(schemas: Mapping[str, Schema], schema: Schema) -> str:
    """What a field may be, in words."""
    match schema:
        case {"const": value}:
            return f"`{json.dumps(value)}`"
        case {"enum": values}:
            shown = [f"`{value}`" for value in values if value is not None]
            return " ".join(shown) + (" or null" if None in values else "")
        case {"anyOf": choices}:
            return " or ".join(_value(schemas, choice) for choice in choices)
        case {"type": list(kinds)}:
            return " or ".join(_value(schemas, {**schema, "type": kind}) for kind in kinds)
        case {"type": kind}:
            return _NAMES[kind] + _bounds(schemas, {**schema, "kind": kind})
        case {"$ref": _}:
            return _value(schemas, schemas[_name(schema)])
    return "any"


_NAMES = {
    "array": "list",
    "boolean": "true or false",
    "integer": "whole number",
    "null": "null",
    "object": "object",
    "string": "text",
}


def _bounds(schemas: Mapping[str, Schema], schema: Schema) -> str:
    match schema:
        case {"kind": "string", "format": "date-time"}:
            return ", a time"
        case {"kind": "string", "pattern": pattern}:
            return f", `{pattern}`"
        case {"kind": "string", "maxLength": most}:
            return f", {'1 to' if schema.get('minLength') else 'up to'} {most} characters"
        case {"kind": "string", "minLength": 1}:
            return ", not empty"
        case {"kind": "integer", "minimum": least}:
            return f", from {least} on"
        case {"kind": "object", "properties": fields}:
            inner = ", ".join(f"{name}: {_value(schemas, value)}" for name, value in fields.items())
            return f" {{{inner}}}"
        case {"kind": "array", "items": {"type": _} as items}:
            return f" of {_value(schemas, items)}"
    return ""


def _name(reference: Schema) -> str:
    name: str = reference["$ref"].rpartition("/")[2]
    return name
