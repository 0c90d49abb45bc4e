"""The API in OpenAPI, for hosts that install drf-spectacular. Only this module imports it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from django.conf import settings as django_settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ComponentRegistry, ResolvedComponent
from drf_spectacular.settings import spectacular_settings

from chatmemory.access import visitors
from chatmemory.api import requests
from chatmemory.api.answers import Problem
from chatmemory.api.base import WRITES
from chatmemory.api.errors import CONTENT_TYPE, HTTP_ONLY
from chatmemory.api.operations import KEY, OPERATIONS, TURN, Operation
from chatmemory.errors import BadInput, ChatMemoryError
from chatmemory.protocol.client_frames import CLIENT_ID
from chatmemory.protocol.schema import class_schema

Schema = dict[str, Any]

JSON = "application/json"
PREFIX = "ChatMemory"
"""Of each component's name, since a host's schema may contain other APIs too."""
COUNT: Schema = {"type": "integer", "minimum": 0}
PATH_PARAMETERS: Mapping[str, tuple[Schema, str, object]] = {
    "key": ({**requests.KEY.schema}, "the session's key", KEY),
    "seq": (COUNT, "the message's number in its session", 1),
    "turn": ({**CLIENT_ID.schema}, "the turn's name: the `client_id` of its message", TURN),
    "undo": (COUNT, "the number that the purge returned", 7),
}
FILE_SCHEMAS: Mapping[str, Schema] = {
    "application/json": {"type": "array", "items": {"type": "object"}},
    "text/markdown": {"type": "string"},
}
ETAG: Schema = {"description": "the state of the answer", "schema": {"type": "string"}}
IF_NONE_MATCH: Schema = {
    "name": "If-None-Match",
    "in": "header",
    "description": "the `ETag` of an earlier answer; if nothing has changed, the answer is 304",
    "schema": {"type": "string"},
}
RETRY_AFTER: Schema = {
    "description": "seconds until the next attempt; of errors with `retry`",
    "schema": COUNT,
}
CHALLENGES: Schema = {
    "description": "a challenge for each means of authentication",
    "schema": {"type": "string"},
}
HEADERS: Mapping[int, Schema] = {
    401: {"WWW-Authenticate": CHALLENGES},
    409: {"Retry-After": RETRY_AFTER},
    429: {"Retry-After": RETRY_AFTER},
    503: {"Retry-After": RETRY_AFTER},
}
"""The headers of errors, by status."""


def _subclasses(kind: type[ChatMemoryError]) -> Iterator[type[ChatMemoryError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _subclasses(each)


ERRORS = {kind.code: kind for kind in _subclasses(ChatMemoryError)}


class OperationSchema(AutoSchema):
    """Describes a view by its entries in `OPERATIONS`, or in its own `operations`."""

    registry: ComponentRegistry

    def get_operation(
        self,
        path: str,
        path_regex: str,
        path_prefix: str,
        method: str,
        registry: ComponentRegistry,
    ) -> Schema:
        self.registry, self.method = registry, method  # `get_auth` uses both
        operations = getattr(self.view, "operations", OPERATIONS)  # those of an optional app
        operation = operations[type(self.view).__name__, method]
        described: Schema = {
            "operationId": f"chatmemory_{operation.name}",
            "summary": operation.summary,
            "tags": ["chatmemory"],
            "parameters": [
                *_path_parameters(path),
                *self._query_parameters(operation),
                *([IF_NONE_MATCH] if operation.is_conditional else ()),
            ],
            "security": [{}] if operation.is_public else self.get_auth(),
            "responses": self._responses(operation),
        }
        if operation.body is not None:
            media = self._media(operation.body.kind, {"usual": {"value": {**operation.example}}})
            described["requestBody"] = {"required": True, "content": {JSON: media}}
        return described

    def _query_parameters(self, operation: Operation) -> list[Schema]:
        if operation.query is None:
            return []
        shared: Schema = {}
        schema = class_schema(operation.query.kind, shared)
        properties: Schema = _adapter(shared)(schema["properties"])
        return [_query_parameter(name, each) for name, each in properties.items()]

    def _responses(self, operation: Operation) -> Schema:
        responses: Schema = {
            str(status): {
                "description": HTTPStatus(status).phrase,
                "content": {JSON: self._media(kind, {"usual": {"value": example}})},
            }
            for status, (kind, example) in operation.answers.items()
        }
        if operation.is_conditional:
            responses["200"]["headers"] = {"ETag": ETAG}
            responses["304"] = {"description": "Not Modified", "headers": {"ETag": ETAG}}
        if operation.files:
            content = {
                kind: {"schema": FILE_SCHEMAS[kind], "examples": {"usual": {"value": text}}}
                for kind, text in operation.files.items()
            }
            responses["200"] = {"description": "A file", "content": content}
        for status, codes in operation.codes().items():
            examples = {code: {"value": _problem_example(status, code)} for code in codes}
            text = ", ".join(f"`{code}`" for code in codes)
            problem: Schema = {
                "description": f"{HTTPStatus(status).phrase}: {text}",
                "content": {CONTENT_TYPE: self._media(Problem, examples)},
            }
            if status in HEADERS:
                problem["headers"] = HEADERS[status]
            known = responses.setdefault(str(status), problem)
            known["content"] |= problem["content"]  # a status can have an answer and a problem
        return dict(sorted(responses.items()))

    def _media(self, kind: type, examples: Schema) -> Schema:
        self._register(kind)
        return {"schema": {"$ref": _schema_address(_name_of(kind))}, "examples": examples}

    def _register(self, kind: type) -> None:
        """Register the schemas of a class and of those that it refers to."""
        shared: Schema = {}
        own = class_schema(kind, shared)
        components = {**shared, _name_of(kind): own}
        for name, schema in [*components.items()]:
            components |= _extract_enums(name, schema)
            components |= _extract_variants(name, schema)
        adapt = _adapter(components)
        for name, schema in components.items():
            if _is_component(schema):
                self.registry.register_on_missing(
                    ResolvedComponent(  # type: ignore[no-untyped-call]  # its package
                        name=PREFIX + _camel(name),
                        type=ResolvedComponent.SCHEMA,
                        object=OperationSchema,
                        schema=adapt(schema),
                    )
                )


class SessionLoginScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # its package
    """Django's session; what writes needs the CSRF token too."""

    target_class = "chatmemory.api.authentication.SessionLogin"
    name = ["chatmemorySession", "chatmemoryCsrf"]  # noqa: RUF012  # the type of its base

    def get_security_requirement(self, auto_schema: AutoSchema) -> dict[str, list[Any]]:
        session, csrf = self.name
        return {session: [], csrf: []} if auto_schema.method in WRITES else {session: []}

    def get_security_definition(self, auto_schema: AutoSchema) -> list[Schema]:
        header = django_settings.CSRF_HEADER_NAME.removeprefix("HTTP_").replace("_", "-")
        cookie = django_settings.CSRF_COOKIE_NAME
        return [
            {
                "type": "apiKey",
                "in": "cookie",
                "name": django_settings.SESSION_COOKIE_NAME,
                "description": "Django's session",
            },
            {
                "type": "apiKey",
                "in": "header",
                "name": header,
                "description": f"the CSRF token, which is the value of the cookie `{cookie}`",
            },
        ]


class VisitorLoginScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # its package
    """A visitor's cookie; what writes needs the CSRF token too, which is defined above."""

    target_class = "chatmemory.api.authentication.VisitorLogin"
    name = "chatmemoryVisitor"

    def get_security_requirement(self, auto_schema: AutoSchema) -> dict[str, list[Any]]:
        _, csrf = SessionLoginScheme.name
        return {self.name: [], csrf: []} if auto_schema.method in WRITES else {self.name: []}

    def get_security_definition(self, auto_schema: AutoSchema) -> Schema:
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": visitors.COOKIE,
            "description": "a visitor, without an account",
        }


class EmbedLoginScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # its package
    """The secret of a visitor of an embed."""

    target_class = "chatmemory.api.authentication.EmbedLogin"
    name = "chatmemoryEmbed"

    def get_security_definition(self, auto_schema: AutoSchema) -> Schema:
        return {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": "`Visitor <secret>`: a visitor on the page of an embed",
        }


def _path_parameters(path: str) -> list[Schema]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": text,
            "schema": schema,
            "example": example,
        }
        for name in re.findall(r"{(\w+)}", path)
        for schema, text, example in [PATH_PARAMETERS[name]]
    ]


def _query_parameter(name: str, schema: Schema) -> Schema:
    text = schema.pop("description", "")
    return {"name": name, "in": "query", "description": text, "schema": _not_null(schema)}


def _not_null(schema: Schema) -> Schema:
    """Remove null from a schema: a query string has no null, only absent parameters."""
    schema.pop("nullable", None)
    match schema:
        case {"type": [kind, "null"]}:
            return {**schema, "type": kind}
        case {"anyOf": [one, {"type": "null"}]}:
            return {**one}
    return schema


def _problem_example(status: int, code: str) -> Schema:
    error = ERRORS.get(code)
    details = {code: detail for _, code, detail in HTTP_ONLY.values()}
    return {
        "status": status,
        "title": HTTPStatus(status).phrase,
        "detail": str(error()) if error else details.get(code, str(BadInput())),
        "code": code,
        "retry": error is not None and error.retry,
    }


def _extract_enums(owner: str, schema: Schema) -> Schema:
    """Replace the enums of an object by references; return them by name.

    Otherwise drf-spectacular names them after the field, and warns of equal names.
    """
    enums: Schema = {}
    for field, values in schema.get("properties", {}).items():
        if "enum" not in values:
            continue
        name = f"{owner}_{field}"
        choices = [each for each in values["enum"] if each is not None]
        kind = "string" if isinstance(choices[0], str) else "integer"
        enums[name] = {"type": kind, "enum": choices}
        reference: Schema = {"$ref": f"#/$defs/{name}"}
        if None in values["enum"]:
            reference = {"anyOf": [reference, {"type": "null"}]}
        text = {"description": values["description"]} if "description" in values else {}
        schema["properties"][field] = reference | text
    return enums


def _extract_variants(owner: str, schema: Schema) -> Schema:
    """Replace an object with one of several fields by a choice of objects; return them by name.

    Generators of clients understand only this form.
    """
    fields = [field for choice in schema.get("oneOf", ()) for field in choice.get("required", ())]
    variants: Schema = {}
    for field in fields:
        others = {*fields} - {field}
        properties = schema["properties"].items()
        variants[f"{owner}_{field}"] = {
            **{key: value for key, value in schema.items() if key != "oneOf"},
            "required": [*schema["required"], field],
            "properties": {name: each for name, each in properties if name not in others},
        }
    if variants:
        text = schema["description"]
        schema.clear()
        schema |= {"description": text, "oneOf": [{"$ref": f"#/$defs/{name}"} for name in variants]}
    return variants


def _is_component(schema: Schema) -> bool:
    return bool({"properties", "enum", "oneOf"} & schema.keys())


def _name_of(kind: type) -> str:
    return re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def _camel(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


def _schema_address(name: str) -> str:
    return f"#/components/schemas/{PREFIX}{_camel(name)}"


def _adapter(components: Schema) -> Callable[[Any], Any]:
    """Return a function that converts a JSON Schema for this version of OpenAPI.

    References to simple types are replaced by the type. OpenAPI 3.0 knows neither null nor const.
    """
    is_old = spectacular_settings.OAS_VERSION.startswith("3.0")

    def adapt(value: Any) -> Any:
        if isinstance(value, list):
            return [adapt(each) for each in value]
        if not isinstance(value, dict):
            return value
        schema = value
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            rest = {key: adapt(each) for key, each in schema.items() if key != "$ref"}
            if not _is_component(components[name]):
                return adapt(components[name]) | rest
            reference = {"$ref": _schema_address(name)}
            return {"allOf": [reference], **rest} if is_old and rest else reference | rest
        adapted = {key: adapt(each) for key, each in schema.items()}
        if not schema.get("required", True):
            del adapted["required"]  # OpenAPI 3.0 forbids an empty list
        if schema.get("type") in ("array", ["array", "null"]):
            adapted.setdefault("items", {})  # which OpenAPI 3.0 and generators of clients require
        return _without_null(adapted) if is_old else adapted

    return adapt


def _without_null(schema: Schema) -> Schema:
    """Express null and const as OpenAPI 3.0 does."""
    match schema:
        case {"type": [kind, "null"], **rest}:
            return {**rest, "type": kind, "nullable": True}
        case {"anyOf": [one, {"type": "null"}], **rest}:
            return {**rest, "allOf": [one], "nullable": True}
        case {"const": value, **rest}:
            return {**rest, "enum": [value]}
    return schema
