"""The columns of the `jsonl` format: one table for each kind of line, for export and import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from django.db import models

from chatmemory import codec
from chatmemory.errors import BadInput
from chatmemory.models import Feedback, Message, Session, SessionNote, Turn, WithdrawnRange

_REQUIRED = object()
_HIGHEST = {"IntegerField": 2**31 - 1, "BigIntegerField": codec.MAX_SAFE_INTEGER}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a model as a JSON value. A value equal to the default is not written."""

    field: models.Field[Any, Any]
    default: object

    @property
    def name(self) -> str:
        return self.field.name

    def write(self, value: Any) -> object:
        """Convert a value to JSON; times are in UTC with microseconds."""
        if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat(timespec="microseconds")
        if isinstance(value, date):
            return value.isoformat()
        return _sorted(value) if isinstance(self.field, models.JSONField) else value

    def read(self, value: object) -> Any:
        """Convert a JSON value to the column's type. Raises BadInput."""
        if value is None and self.field.null:
            return None
        match self.field, value:
            case models.BooleanField(), bool():
                return value
            case models.SmallIntegerField(), int() if not isinstance(value, bool):
                if value in dict(self.field.flatchoices):
                    return value
            case models.IntegerField(), int() if not isinstance(value, bool):
                if 0 <= value <= _HIGHEST[self.field.get_internal_type()]:
                    return value
            case models.DateTimeField(), str():
                return self._parse_moment(value)
            case models.DateField(), str():
                return self._parse_day(value)
            case models.JSONField(), dict():
                codec.check_value(value, self.name)
                return value
            case ((models.CharField() | models.TextField()), str()):
                return self._parse_text(value)
        raise self._invalid_value()

    def _parse_text(self, value: str) -> str:
        max_chars = self.field.max_length
        choices = self.field.choices
        if max_chars is not None and len(value) > max_chars:
            raise self._invalid_value()
        if choices is not None and value not in dict(self.field.flatchoices):
            raise self._invalid_value()
        return codec.check_storable(value, self.name)

    def _parse_moment(self, value: str) -> datetime:
        try:
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return moment.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
        raise self._invalid_value()

    def _parse_day(self, value: str) -> date:
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise self._invalid_value() from None

    def _invalid_value(self) -> BadInput:
        return BadInput(f"{self.name} must be {self._expected_text()}.", field=self.name)

    def _expected_text(self) -> str:
        """Describe the accepted values, for an error text."""
        match self.field:
            case models.BooleanField():
                return "true or false"
            case models.SmallIntegerField():
                return f"one of {', '.join(map(str, dict(self.field.flatchoices)))}"
            case models.IntegerField():
                return f"a whole number from 0 to {_HIGHEST[self.field.get_internal_type()]}"
            case models.DateTimeField():
                return "a time with its UTC offset"
            case models.DateField():
                return "a date (YYYY-MM-DD)"
            case models.JSONField():
                return "an object"
        if self.field.choices is not None:
            return f"one of {', '.join(dict(self.field.flatchoices))}"
        max_chars = self.field.max_length
        return "a text" if max_chars is None else f"a text of up to {max_chars} characters"


class Line:
    """The columns of one kind of line."""

    def __init__(self, model: type[models.Model], defaults: Mapping[str, object]) -> None:
        fields = {field.name: field for field in model._meta.fields}
        self.columns = [Column(fields[name], default) for name, default in defaults.items()]

    def write(self, row: models.Model) -> dict[str, object]:
        """Convert a row to a line, without its type."""
        values = ((column, getattr(row, column.name)) for column in self.columns)
        return {
            column.name: column.write(value) for column, value in values if value != column.default
        }

    def read(self, line: Mapping[str, object]) -> dict[str, Any]:
        """Convert a line to the columns of a row.

        Raises BadInput, also for a missing or an unknown column.
        """
        values = {}
        remaining = dict(line)
        for column in self.columns:
            if column.name in remaining:
                values[column.name] = column.read(remaining.pop(column.name))
            elif column.default is _REQUIRED:
                raise BadInput(f"{column.name} is required.", field=column.name)
            else:
                values[column.name] = column.default
        if remaining:
            raise codec.unknown_field(next(iter(remaining)))
        return values


def _sorted(value: object) -> object:
    """Sort the keys of all dicts: PostgreSQL's jsonb does not keep their order."""
    match value:
        case dict():
            return {key: _sorted(value[key]) for key in sorted(value)}
        case list():
            return [_sorted(item) for item in value]
        case _:
            return value


ADDRESS = ("key", "scope", "removed_scope", "removed_at")
"""Columns of a session that an import replaces by its own values."""

SESSION = Line(
    Session,
    {
        "scope": _REQUIRED,
        "key": _REQUIRED,
        "title": "",
        "instructions": "",
        "metadata": {},
        "first_seq": _REQUIRED,
        "last_seq": _REQUIRED,
        "stored_from": _REQUIRED,
        "revision": 0,
        "tokens": 0,
        "created_at": _REQUIRED,
        "last_active_day": _REQUIRED,
        "last_message_at": None,
        "expires_at": None,
        "ttl_seconds": None,
        "archived_at": None,
        "pinned_at": None,
        "held_at": None,
        "removed_at": None,
        "removed_scope": "",
        "origin": None,
        "origin_row": None,
    },
)
TURN = Line(
    Turn,
    {
        "client_id": _REQUIRED,
        "status": _REQUIRED,
        "user_seq": None,
        "replaces_from": None,
        "replaces_to": None,
        "asked": "",
        "partial": "",
        "step": 0,
        "first_text_ms": None,
        "model": "",
        "usage": "",
        "error": "",
        "created_at": _REQUIRED,
        "started_at": None,
        "stop_requested_at": None,
        "ended_at": None,
    },
)
MESSAGE = Line(
    Message,
    {
        "seq": _REQUIRED,
        "role": _REQUIRED,
        "text": _REQUIRED,
        "body": None,
        "client_id": None,
        "batch": None,
        "turn": None,
        "step": None,
        "status": "complete",
        "error": "",
        "model": "",
        "author": None,
        "tokens": _REQUIRED,
        "revision": 0,
        "redacted": False,
        "quarantined": False,
        "feedback": None,
        "created_at": _REQUIRED,
    },
)
FEEDBACK = Line(
    Feedback,
    {
        "turn": _REQUIRED,
        "user_seq": _REQUIRED,
        "value": _REQUIRED,
        "reason": "",
        "created_at": _REQUIRED,
        "changed_at": _REQUIRED,
    },
)
NOTE = Line(
    SessionNote,
    {
        "text": _REQUIRED,
        "actor_kind": _REQUIRED,
        "actor_id": _REQUIRED,
        "actor_label": _REQUIRED,
        "created_at": _REQUIRED,
    },
)
WITHDRAWN = Line(
    WithdrawnRange,
    {
        "low": _REQUIRED,
        "high": _REQUIRED,
        "withdrawn_at": _REQUIRED,
    },
)
