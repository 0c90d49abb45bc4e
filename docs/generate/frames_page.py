"""Generates protocol.schema.json and docs/reference/frames.md from the frames and bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import django
from django.conf import settings

if not settings.configured:  # run as a script
    apps = ["django.contrib.contenttypes", "django.contrib.auth", "chatmemory", "chatmemory.search"]
    settings.configure(INSTALLED_APPS=apps)
    django.setup()

import chatmemory
from chatmemory.api.operations import OPERATIONS
from chatmemory.api.urls import resources  # its models need the settings
from chatmemory.protocol.schema import class_schema, frames_schema
from chatmemory.protocol.shapes import Shape
from chatmemory.search import requests as search
from chatmemory.search.urls import resources as search_resources

INTRO = """# Frames, request bodies and queries

Every field of every frame of `chatmemory.v1`, whose use the [protocol](protocol.md) describes, and
of every body and query of the [REST API](api.md). Required fields are **bold**.
`python docs/generate/frames_page.py` generates this page, and the frames as
[JSON Schema](../../chatmemory/protocol.schema.json), from `chatmemory/protocol` and
`chatmemory/api/requests.py`, that of the search from `chatmemory/search/requests.py`.
"""

MAX_LINE_CHARS = 100

Schema = Mapping[str, Any]


def schema() -> str:
    """Return the JSON Schema of the frames."""
    return _formatted(frames_schema()) + "\n"


def _formatted(value: object, indent: str = "") -> str:
    """Format a JSON value; what fits in a line is in one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent + line) <= MAX_LINE_CHARS or not isinstance(value, dict | list):
        return line
    inner = f"{indent}  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_formatted(part, inner)}" for name, part in value.items()]
        first, last = "{}"
    else:
        parts = [_formatted(part, inner) for part in value]
        first, last = "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{last}"


def page() -> str:
    """Return the page as Markdown: the frames of each side, then the requests of REST."""
    return "\n".join(_parts())


def _parts() -> Iterator[str]:
    yield INTRO
    schemas = frames_schema()["$defs"]
    for side in ("client", "server"):
        yield f"## From the {side}\n"
        for choice in schemas[f"from_{side}"]["oneOf"]:
            name = _name(choice)
            yield _section(name, schemas[name], schemas)
    yield "## Over REST\n"
    for request, shape in requests():
        shared: dict[str, Schema] = {}
        section = _section(request, class_schema(shape.kind, shared), shared)
        # Null is the default of an absent parameter; a query cannot contain it.
        yield section.replace(" or null |", " |") if request.startswith("GET") else section


def requests() -> Iterator[tuple[str, Shape[Any]]]:
    """Return each request that has a body or a query, with its shape."""
    for url in (*resources, *search_resources):
        address = re.sub(r"<\w+:", "<", str(url.pattern))
        callback: Any = url.callback
        view = callback.view_class.__name__
        for (name, method), operation in {**OPERATIONS, **search.OPERATIONS}.items():
            shape = operation.query or operation.body
            if name == view and shape:
                yield f"{method} {address}", shape


def _section(title: str, frame: Schema, schemas: Mapping[str, Schema]) -> str:
    heading = f"### `{title}`\n\n{frame['description']}\n"
    rows = [*_rows(frame, schemas)]
    table = ["| field | value | meaning |", "| --- | --- | --- |", *rows, ""]
    return "\n".join([heading, *(table if rows else ())])


def _rows(frame: Schema, schemas: Mapping[str, Schema]) -> Iterator[str]:
    for field, schema in frame["properties"].items():
        if field == "type":
            continue
        shown = f"**{field}**" if field in frame["required"] else field
        whole = {**schemas[_name(schema)], **schema} if "$ref" in schema else schema
        meaning = whole.get("description", "")
        yield f"| {shown} | {_value(schemas, whole)} | {meaning} |"


def _value(schemas: Mapping[str, Schema], schema: Schema) -> str:
    """Describe the values that a field accepts."""
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
    "number": "number",
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
        case {"kind": "integer" | "number", "minimum": least}:
            return f", from {least} on"
        case {"kind": "object", "properties": fields}:
            inner = ", ".join(f"{name}: {_value(schemas, value)}" for name, value in fields.items())
            return f" {{{inner}}}"
        case {"kind": "array", "items": items}:
            return f" of {_value(schemas, items)}"
    return ""


def _name(reference: Schema) -> str:
    name: str = reference["$ref"].rpartition("/")[2]
    return name


if __name__ == "__main__":
    (Path(chatmemory.__file__).parent / "protocol.schema.json").write_text(schema())
    (Path(__file__).resolve().parents[1] / "reference/frames.md").write_text(page())
