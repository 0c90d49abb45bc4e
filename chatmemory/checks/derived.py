"""Checks of the models of derived rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models import UniqueConstraint

from chatmemory.models.derived import DerivedFileRow, DerivedPersonRow, DerivedRow
from chatmemory.services.derived.removal import person_models, range_models


@checks.register
def check_derived_models(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Check what a removal would find missing in the models of derived rows."""
    sentences = [
        *((model, sentence) for model in range_models() for sentence in _missing_parts(model)),
        *((model, sentence) for model in person_models() for sentence in _unmovable(model)),
    ]
    return [
        checks.Error(f"{model._meta.label} {sentence}", obj=model, id="chatmemory.E023")
        for model, sentence in sentences
    ]


def _missing_parts(model: type[DerivedRow]) -> Iterator[str]:
    if model.when_hidden not in ("keep", "delete"):
        yield "must have a when_hidden of keep or delete."
    if model.exported and model.as_export is DerivedRow.as_export:
        yield "is exported, and must define as_export()."
    if not issubclass(model, DerivedFileRow):
        return
    if model.clean_up.__func__ is DerivedFileRow.clean_up.__func__:  # type: ignore[attr-defined]  # a classmethod
        yield "must define clean_up(), which deletes what its tombstones name."
    emptied = model.emptied()
    for field in model._meta.concrete_fields:
        if not field.null and emptied.get(field.attname, "") is None:
            yield f"must list {field.name} in needed, or allow null: a tombstone cannot empty it."
    uniques = (constraint.fields for constraint in model._meta.total_unique_constraints)
    for fields in (*uniques, *model._meta.unique_together, *_unique_fields(model)):
        if not set(fields) & {*model.needed}:
            yield f"must list one of {', '.join(fields)} in needed: all tombstones have the same."
    names = {field.name for field in model._meta.concrete_fields}
    for name in set(model.needed) - names:
        yield f"has no field {name}, which needed lists."


def _unique_fields(model: type[DerivedRow]) -> Iterator[tuple[str]]:
    """Return the fields that are unique alone, and of which a tombstone has an empty value."""
    for field in model._meta.concrete_fields:
        if field.unique and not field.primary_key and not field.null:
            yield (field.name,)


def _unmovable(model: type[DerivedPersonRow]) -> Iterator[str]:
    scope = model._meta.get_field("scope")
    constraints = (
        constraint.fields
        for constraint in model._meta.constraints
        if isinstance(constraint, UniqueConstraint)
    )
    is_unique = any("scope" in fields for fields in (*constraints, *model._meta.unique_together))
    is_default = model.adopt.__func__ is DerivedPersonRow.adopt.__func__  # type: ignore[attr-defined]  # a classmethod
    if is_default and (is_unique or getattr(scope, "unique", False)):
        yield "has a unique scope, and must define adopt(), for a person who has rows of both."
