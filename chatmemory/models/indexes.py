"""Partial indexes, where the database supports them."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement
from django.db.models import Q


class PartialIndex(models.Index):
    """Indexes only the rows that `where` selects; on MariaDB all rows.

    With `Index.condition`, which Django ignores on MariaDB, every command prints the warning
    models.W037 there.
    """

    def __init__(self, *, where: Q, **options: Any) -> None:
        super().__init__(**options)
        self.where = where

    def deconstruct(self) -> Any:
        path, expressions, options = super().deconstruct()
        return path, expressions, {**options, "where": self.where}

    def create_sql(
        self,
        model: type[models.Model],
        schema_editor: BaseDatabaseSchemaEditor,
        using: str = "",
        **kwargs: Any,
    ) -> Statement:
        index = models.Index(fields=self.fields, name=self.name, condition=self.where)
        return index.create_sql(model, schema_editor, using, **kwargs)


class PrefixIndex(models.Index):
    """Finds the rows in which a text column starts with something, in either case if needed.

    PostgreSQL needs an operator class for that, and compares upper-case texts for `istartswith`.
    SQLite, which scans for it, and MariaDB, whose collations decide, get a plain index.
    """

    def __init__(self, *fields: str, name: str, is_case_insensitive: bool = False) -> None:
        super().__init__(fields=list(fields), name=name)
        self.is_case_insensitive = is_case_insensitive

    def deconstruct(self) -> Any:
        path, _, options = super().deconstruct()
        if self.is_case_insensitive:
            options["is_case_insensitive"] = True
        return path, options.pop("fields"), options

    def clone(self) -> PrefixIndex:
        return PrefixIndex(
            *self.fields, name=self.name, is_case_insensitive=self.is_case_insensitive
        )

    def create_sql(
        self,
        model: type[models.Model],
        schema_editor: BaseDatabaseSchemaEditor,
        using: str = "",
        **kwargs: Any,
    ) -> Statement:
        statement: Any = super().create_sql(model, schema_editor, using, **kwargs)
        if schema_editor.connection.vendor == "postgresql":
            columns = (schema_editor.quote_name(column) for column in self.fields)
            # Django's UPPER casts to text, and an index must contain the same expression.
            form = (
                "UPPER({}::text) text_pattern_ops"
                if self.is_case_insensitive
                else "{} varchar_pattern_ops"
            )
            statement.parts["columns"] = ", ".join(form.format(column) for column in columns)
        return statement  # type: ignore[no-any-return]


class UniqueIfSet(models.UniqueConstraint):
    """Refuses duplicates of fields, of which the last may be null, with a partial index.

    On MariaDB the index contains all rows. Rows with a null are never duplicates, so both refuse
    the same rows. With `UniqueConstraint.condition` Django would create nothing on MariaDB, and
    every command would print the warning models.W036. An index from SQL in a migration would be
    lost on SQLite when a later migration copies the table.
    """

    def __eq__(self, other: object) -> bool:
        # Otherwise `makemigrations` takes it for the plain constraint, which has a full index.
        return isinstance(other, UniqueIfSet) and super().__eq__(other)

    def constraint_sql(
        self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None
    ) -> str:
        return self._on(schema_editor).constraint_sql(model, schema_editor)

    def create_sql(
        self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None
    ) -> Any:
        return self._on(schema_editor).create_sql(model, schema_editor)

    def remove_sql(
        self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None
    ) -> Any:
        return self._on(schema_editor).remove_sql(model, schema_editor)

    def _on(self, schema_editor: Any) -> models.UniqueConstraint:
        """Return Django's constraint for this database."""
        is_partial = schema_editor.connection.features.supports_partial_indexes
        is_set = Q(**{f"{self.fields[-1]}__isnull": False})
        return models.UniqueConstraint(
            fields=self.fields, name=self.name, condition=is_set if is_partial else None
        )
