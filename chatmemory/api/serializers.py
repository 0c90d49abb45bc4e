"""The shape of what comes in, and of what goes out. What it means is the services' business."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers

from chatmemory import codec
from chatmemory.conf import settings
from chatmemory.errors import BadInput, RoleForbidden
from chatmemory.models import Session

MAX_PAGE = 100

_NAMES = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
}


class Exact(serializers.Field[Any, Any, Any, Any]):
    """A value of one of these JSON types, taken as it is: `true` is no 1, and 1 no text."""

    def __init__(self, *types: type, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.types = types

    def to_internal_value(self, data: object) -> object:
        if type(data) not in self.types:
            wanted = " or ".join(_NAMES[kind] for kind in self.types)
            raise BadInput(f"{self.field_name} must be {wanted}.", field=self.field_name or "")
        return data


class Number(serializers.Field[int, str, int, Any]):
    """A whole number in a query; one above `cap` counts as `cap`."""

    def __init__(self, *, least: int = 0, cap: int = 10**18, **kwargs: Any) -> None:
        super().__init__(required=False, **kwargs)
        self.least, self.cap = least, cap

    def to_internal_value(self, data: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", data) or int(data) < self.least:
            message = f"{self.field_name} must be a whole number from {self.least} on."
            raise BadInput(message, field=self.field_name or "")
        return min(int(data), self.cap)


class Shape(serializers.Serializer[Any]):
    """An object in which each field is known."""

    @classmethod
    def read(cls, data: object) -> dict[str, Any]:
        """Take the object apart. Raises BadInput, and ValidationError where a field is missing."""
        if not isinstance(data, Mapping):
            raise BadInput("The body must be an object.", code="bad_shape")
        shape = cls(data=data)
        for name in data:
            if name not in shape.fields:
                raise codec.unknown_field(name)
        shape.is_valid(raise_exception=True)
        return dict(shape.validated_data)


class SessionQuery(Shape):
    """Which of one's sessions."""

    limit = Number(least=1, cap=MAX_PAGE, default=50)
    cursor = Exact(str, required=False)


class MessageQuery(Shape):
    """Which rows of a session: those after a number, before one, or the newest."""

    limit = Number(least=1, cap=MAX_PAGE, default=50)
    after = Number()
    before = Number()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len(attrs.keys() & {"after", "before"}) > 1:
            raise BadInput("Ask for rows after or before a number, not both.", field="before")
        return attrs


class Opening(Shape):
    """A session to open."""

    key = Exact(str, required=False)
    title = Exact(str, default="")


class Send(Shape):
    """A message to send, and how many seconds to wait for the reply."""

    client_id = Exact(str)
    text = Exact(str, required=False)
    content = Exact(list, required=False)
    epoch = Exact(int, required=False)
    if_busy = Exact(str, required=False)
    replaces = Exact(int, required=False)
    expect_seq = Exact(int, required=False)
    wait = Exact(bool, int, float, default=False)

    @classmethod
    def read(cls, data: object) -> dict[str, Any]:
        if isinstance(data, Mapping) and "role" in data:
            raise RoleForbidden
        return super().read(data)

    def validate_wait(self, value: bool | float) -> float:
        if value < 0:
            raise BadInput("wait must be true or a number of seconds.", field="wait")
        return settings.TURN_TIMEOUT if value is True else min(value, settings.TURN_TIMEOUT)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len(attrs.keys() & {"text", "content"}) != 1:
            raise BadInput("Say a text, or a content of text blocks.", field="text")
        attrs["content"] = attrs.pop("text", None) or attrs.get("content", "")
        return attrs


def session_fields(sessions: Sequence[Session]) -> list[dict[str, object]]:
    """The sessions as their owner sees them: as in a frame, and what a list wants besides."""
    heads = Session.objects.heads([session.pk for session in sessions])
    return [
        {
            **head.public(),
            "messages": head.last_seq - head.first_seq + 1,
            "created_at": session.created_at.isoformat(),
            "last_message_at": session.last_message_at and session.last_message_at.isoformat(),
        }
        for session in sessions
        if (head := heads.get(session.pk))  # none where it was purged just now
    ]
