"""Pieces of SQL templates, and their values."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import BaseExpression
from django.db.models.sql import Query

from chatmemory.models import Message

_CONSTANTS: Final[Mapping[object, str]] = {
    None: "NULL",
    **{number: str(number) for number in (-1, 0, 1)},
    **{word: f"'{word}'" for word in ("", *Message.Role.values, *Message.Status.values)},
}
"""Frequent values that are part of the text: binding a parameter costs more than this look-up."""


class Values:
    """The values of one statement by name: constants in its text, or named parameters."""

    def __init__(self, connection: BaseDatabaseWrapper, given: Mapping[str, Any]) -> None:
        """Expressions among the values must be the same objects in each call."""
        self.connection = connection
        self.given = given
        self.parameters: dict[str, Any] = {}
        """The parameters of the SQL that was returned so far."""

    @property
    def shape(self) -> tuple[Hashable, ...]:
        """What the SQL of these values depends on."""
        return (self.connection.alias, *self.given, *map(_constant_of, self.given.values()))

    def quote(self, name: str) -> str:
        """Quote the name of a table or column."""
        return self.connection.ops.quote_name(name)

    def sql_of(self, name: str) -> str:
        """Return the SQL of a value: a constant, an expression, or a parameter of this name."""
        value = self.given[name]
        constant = _constant_of(value)
        if constant is None:
            self.parameters[name] = value
            return f"%({name})s"
        if isinstance(constant, str):
            return constant
        sql, named = _expression_sql(value, name, self.connection.alias)
        self.parameters |= named
        return sql

    def equals(self, columns: Iterable[str]) -> str:
        """Return the condition that columns have the values that are given as `is_{column}`."""
        return " AND ".join(
            f"{self.quote(column)} IS NULL"
            if self.given[f"is_{column}"] is None
            else f"{self.quote(column)} = {self.sql_of(f'is_{column}')}"
            for column in columns
        )


def _constant_of(value: Any) -> Any:
    """Return the SQL of a constant, an expression itself, and None for a parameter."""
    if type(value) is list:
        return None
    return value if hasattr(value, "resolve_expression") else _CONSTANTS.get(value)


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is built once for all values of one shape."""

    sql: str
    names: Sequence[str]
    """The given values that are parameters."""
    fixed: Mapping[str, Any]
    """The parameters of expressions."""

    @classmethod
    def of(cls, sql: str, values: Values) -> Text:
        """Return the text of these values and of others with the same shape."""
        names = [name for name in values.parameters if name in values.given]
        fixed = {name: value for name, value in values.parameters.items() if name not in names}
        return cls(sql, names, fixed)

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters for these values."""
        return {**self.fixed, **{name: given[name] for name in self.names}}


# The same object in each call: to compare two equal ones takes longer than this saves.
@lru_cache(maxsize=100)
def _expression_sql(
    expression: BaseExpression, name: str, alias: str
) -> tuple[str, Mapping[str, Any]]:
    query = Query(None, alias_cols=False)
    compiler = query.get_compiler(using=alias)
    sql, params = compiler.compile(expression.resolve_expression(query, for_save=True))
    return with_names(sql, params, name)


def with_names(sql: str, params: Sequence[object], prefix: str) -> tuple[str, dict[str, Any]]:
    """Convert positional parameters to named ones: `%s` becomes `%(prefix_1)s`, and so on.

    Django compiles expressions to SQL with positional parameters. A statement can't use both kinds.
    """
    names = (f"{prefix}_{number}" for number in count(1))
    named: dict[str, Any] = {}
    values = iter(params)

    def replace(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%%"
        name = next(names)
        named[name] = next(values)
        return f"%({name})s"

    return re.sub("%[%s]", replace, sql), named
