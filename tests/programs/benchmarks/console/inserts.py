"""INSERT … SELECT into the table of a model, whose other columns get their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection
from django.db.models import NOT_PROVIDED, Field, Model


def insert_select(
    model: type[Model], columns: Mapping[str, str], source: str, **params: Any
) -> int:
    """Insert a row for each row of `source`, SQL after FROM; return the number of rows.

    `columns` maps fields to SQL. Other fields get their default, so a new column with a default
    needs no change here. Raises ValueError for an unknown field, and for one without a value.
    """
    fields = {field.name: field for field in model._meta.local_concrete_fields}
    if unknown := columns.keys() - fields.keys():
        raise ValueError(f"{model.__name__} has no field {', '.join(sorted(unknown))}.")
    values = dict(columns)
    for name in fields.keys() - columns.keys():
        if not _is_set_by_database(fields[name]):
            values[name] = f"%(default_{name})s"
            params[f"default_{name}"] = _default(fields[name])
    names = ", ".join(connection.ops.quote_name(str(fields[name].column)) for name in values)
    table = connection.ops.quote_name(model._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({names}) SELECT {', '.join(values.values())} FROM {source}",  # noqa: S608  # SQL of this package
            params,
        )
        count: int = cursor.rowcount
    return count


def _is_set_by_database(field: Field[Any, Any]) -> bool:
    is_null = field.null and not field.has_default()
    return field.primary_key or field.db_default is not NOT_PROVIDED or is_null


def _default(field: Field[Any, Any]) -> object:
    value = field.get_default()
    if value is None:
        raise ValueError(f"{field.model.__name__}.{field.name} has no default and no value here.")
    return field.get_db_prep_save(value, connection)
