"""Shapes of JSON objects, declared by classes: the parser and the JSON Schema read the same fields.

A field is an annotation: `X | None` accepts null, a default makes it optional, a `Rule` in
`Annotated` restricts the values, and the docstring below it is its description.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from chatmemory import codec
from chatmemory.errors import BadInput

T = TypeVar("T")

Schema = Mapping[str, object]


def _unchecked(value: object, _field: str) -> object:
    return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    """The values that a field accepts."""

    schema: Schema
    """The JSON Schema. It may be stricter than `check`: services check the meaning of values."""
    check: Callable[[object, str], object] = _unchecked
    """Returns the value of the field with this name. Raises BadInput. The server's own frames are
    not parsed, so their rules need none."""
    name: str = ""
    """The name of the schema, if several frames refer to it."""


@dataclass(frozen=True, slots=True, eq=False)
class OneOf:
    """Rules of several fields, of which an object has exactly one; the first is the usual one."""

    rules: Mapping[str, Rule]

    def choose(self, source: Mapping[str, object]) -> str:
        """Return the name that the object has, else the first one. Raises BadInput."""
        usual, *others = self.rules
        for name in others:
            if name in source:
                if usual in source:
                    raise BadInput(f"Only one of {usual} and {name} is allowed.", field=usual)
                return name
        return usual


class Shape(Generic[T]):
    """The fields of a dataclass, in the order of the checks: its own first, then inherited ones."""

    def __init__(self, kind: type[T], *, ignored: Iterable[str] = ()) -> None:
        self.kind = kind
        self._fields: list[tuple[str, Rule | OneOf, bool, bool]] = []
        self.names = {*ignored}
        optional = optional_fields(kind)
        for name, hint in hints_of(kind).items():
            _, rule, is_nullable = split(hint)
            if rule is None:
                raise TypeError(f"{kind.__name__}.{name} needs a Rule.")
            rules = rule.rules if isinstance(rule, OneOf) else {name: rule}
            if any(each.check is _unchecked for each in rules.values()):
                raise TypeError(f"The Rule of {kind.__name__}.{name} needs a check.")
            self._fields.append((name, rule, name not in optional, is_nullable))
            self.names |= {*rules}

    def parse(self, source: Mapping[str, object]) -> T:
        """Convert a JSON object; other fields are ignored. Raises BadInput."""
        values: dict[str, object] = {}
        for target, rule, is_required, is_nullable in self._fields:
            name = target
            if isinstance(rule, OneOf):
                name = rule.choose(source)
                rule = rule.rules[name]
            value = source.get(name, MISSING)
            if value is MISSING:
                if is_required:
                    raise BadInput(f"{name} is required.", field=name)
            elif value is not None or not is_nullable:
                values[target] = rule.check(value, name)
            elif is_required:
                values[target] = None
        return self.kind(**values)

    def unknown_in(self, source: Mapping[str, object]) -> str | None:
        """Return the first name in the object that is no field; None without one."""
        if source.keys() <= self.names:
            return None
        return next(name for name in source if name not in self.names)


def check_text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{field} must be a string.", field=field)
    return value


def check_flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{field} must be true or false.", field=field)
    return value


def check_number(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInput(f"{field} must be an integer of 0 or more.", field=field)
    return value


def text_rule(**schema: object) -> Rule:
    """Return the rule of a string; `schema` has more keywords of JSON Schema, not checked here."""
    return Rule(check=check_text, schema={"type": "string", **schema})


NUMBER = Rule(
    check=check_number,
    schema={"type": "integer", "minimum": 0, "maximum": codec.MAX_SAFE_INTEGER},
    name="number",
)
RULES: Mapping[object, Rule] = {
    str: text_rule(),
    bool: Rule(check=check_flag, schema={"type": "boolean"}),
    int: NUMBER,
}
"""The rules of types that have no `Rule` in their annotation."""

CONDITIONS: dict[type, Schema] = {}
"""Keywords of JSON Schema for a class that no single field can express."""


def with_conditions(**keywords: object) -> Callable[[type[T]], type[T]]:
    """Add keywords to the JSON Schema of a class."""

    def add(kind: type[T]) -> type[T]:
        CONDITIONS[kind] = keywords
        return kind

    return add


def split(annotation: object) -> tuple[object, Rule | OneOf | None, bool]:
    """Return the type of an annotation, its rule if it has one, and whether it accepts null."""
    base, *metadata = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    rule = next((entry for entry in metadata if isinstance(entry, Rule | OneOf)), None)
    members = get_args(base) if get_origin(base) in (Union, UnionType) else ()
    if NoneType not in members:
        return base, rule or RULES.get(base), False
    others = reduce(or_, (member for member in members if member is not NoneType))
    base, inner, _ = split(others)
    return base, rule or inner, True


def hints_of(kind: type) -> dict[str, Any]:
    """Return the annotations of a class and its bases, its own first."""
    hints = get_type_hints(kind, include_extras=True)
    names = [name for cls in kind.__mro__ for name in vars(cls).get("__annotations__", ())]
    return {name: hints[name] for name in names}


def optional_fields(kind: type[Any]) -> set[str]:
    """Return the names of the fields of a dataclass that have a default."""
    return {
        field.name
        for field in fields(kind)
        if not (field.default is MISSING and field.default_factory is MISSING)
    }
