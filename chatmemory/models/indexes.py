"""Indexes that are smaller where the database can make them so."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement
from django.db.models import Q


class PartialIndex(models.Index):
    """An index of the rows that `where` selects, and of all rows on MariaDB.

    Not `Index.condition`, with which every command on MariaDB prints the warning models.W037.
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
        is_partial = schema_editor.connection.features.supports_partial_indexes
        condition = self.where if is_partial else None
        index = models.Index(fields=self.fields, name=self.name, condition=condition)
        return index.create_sql(model, schema_editor, using, **kwargs)
