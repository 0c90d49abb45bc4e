"""The JSON Schema of frames and request bodies, from their annotations and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from dataclasses import is_dataclass
from typing import Any, Literal, NotRequired, get_args, get_origin, is_typeddict

from chatmemory.protocol.client_frames import SHAPES
from chatmemory.protocol.server_frames import FRAMES
from chatmemory.protocol.shapes import (
    CONDITIONS,
    OneOf,
    hints_of,
    optional_fields,
    split,
)

Schema = dict[str, Any]


def frames_schema() -> Schema:
    """Return the schema of all frames: the content of protocol.schema.json."""
    client = {name: shape.kind for name, shape in SHAPES.items()}
    server = {kind.__name__.lower(): kind for kind in FRAMES}
    shared: Schema = {}
    frames = {
        name: class_schema(kind, shared, frame_type=name)
        for name, kind in {**client, **server}.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:django-chatmemory:chatmemory.v1",
        "title": "chatmemory.v1",
        "description": "All frames of the websocket. Clients ignore unknown types and fields; "
        "the server rejects them.",
        "anyOf": [_ref("from_client"), _ref("from_server")],
        "$defs": {
            "from_client": {"oneOf": [_ref(name) for name in client]},
            "from_server": {"oneOf": [_ref(name) for name in server]},
            **shared,
            **frames,
        },
    }


def class_schema(kind: type[Any], shared: Schema, *, frame_type: str = "") -> Schema:
    """Return the schema of a class; schemas to which it refers are added to `shared`."""
    texts = _descriptions(kind)
    optional = optional_fields(kind) if is_dataclass(kind) else frozenset()
    schema: Schema = {"description": texts.pop("")} if "" in texts else {}
    properties: Schema = {"type": {"const": frame_type}} if frame_type else {}
    required = [*properties]
    schema |= {"type": "object", "required": required}
    for name, hint in hints_of(kind).items():
        _, rule, _ = split(hint)
        if isinstance(rule, OneOf):
            properties |= {field: each.schema for field, each in rule.rules.items()}
            schema["oneOf"] = [{"required": [field]} for field in rule.rules]
            continue
        if get_origin(hint) is NotRequired:
            (hint,) = get_args(hint)
        elif name not in optional:
            required.append(name)
        text = {"description": texts[name]} if name in texts else {}
        properties[name] = _schema_of(hint, shared) | text
    schema |= CONDITIONS.get(kind, {})
    if not is_typeddict(kind):  # the server rejects unknown fields, clients ignore them
        schema["additionalProperties"] = False
    return {**schema, "properties": properties}


def _schema_of(hint: object, shared: Schema) -> Schema:
    base, rule, is_nullable = split(hint)
    schema: Schema
    if rule is None or isinstance(rule, OneOf):
        schema = _schema_of_type(base, shared)
    elif rule.name:
        shared[rule.name] = rule.schema
        schema = _ref(rule.name)
    else:
        schema = {**rule.schema}
    return _or_null(schema) if is_nullable else schema


def _schema_of_type(base: Any, shared: Schema) -> Schema:
    if is_typeddict(base):
        name = re.sub("(?<!^)(?=[A-Z])", "_", base.__name__).lower()
        shared[name] = class_schema(base, shared)
        return _ref(name)
    origin, args = get_origin(base), get_args(base)
    if origin is Literal:
        return {"enum": [*args]}
    if origin is list:
        items = _schema_of(args[0], shared)
        return {"type": "array", **({"items": items} if items else {})}
    if origin is dict:
        return {"type": "object"}
    if base is object:
        return {}
    raise TypeError(f"{base!r} has no JSON Schema.")


def _or_null(schema: Schema) -> Schema:
    match schema:
        case {"type": kind, "enum": values}:
            return {**schema, "type": [kind, "null"], "enum": [*values, None]}
        case {"type": kind}:
            return {**schema, "type": [kind, "null"]}
        case {"enum": values}:
            return {**schema, "enum": [*values, None]}
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _descriptions(kind: type) -> dict[str, str]:
    """Return the docstrings of the class (under "") and of its fields, also inherited ones."""
    found: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        if cls.__module__ == "builtins":
            continue
        [body] = ast.parse(inspect.getsource(cls)).body
        assert isinstance(body, ast.ClassDef)  # noqa: S101  # it is the source of a class
        for base in _typed_bases(cls, body):
            found |= _descriptions(base)
        found[""] = ast.get_docstring(body) or ""
        for field, documented in zip(body.body, body.body[1:], strict=False):
            match field, documented:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str() as text)):
                    found[name] = text
    return {name: " ".join(text.split()) for name, text in found.items() if text}


def _typed_bases(cls: type, body: ast.ClassDef) -> list[type]:
    """Return the bases of a TypedDict, whose `__mro__` contains only dict."""
    names = [base.id for base in body.bases if isinstance(base, ast.Name)]
    bases = [getattr(sys.modules[cls.__module__], name) for name in names]
    return [base for base in bases if is_typeddict(cls) and is_typeddict(base)]
