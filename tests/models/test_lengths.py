"""The lengths in the protocol, in the checks of input and in the columns are the same."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.db import models

from chatmemory import codec
from chatmemory.access.addresses import check_session_key
from chatmemory.errors import BadInput
from chatmemory.models import MAX_FEEDBACK_CHARS, Feedback, Message, Session, Turn
from chatmemory.services.session_fields import MAX_TITLE_CHARS
from tests.frames import SCHEMA

COLUMNS: dict[str, tuple[type[models.Model], str]] = {
    "client_id": (Turn, "client_id"),
    "rename.title": (Session, "title"),
    "feedback.reason": (Feedback, "reason"),
    "session_name.key": (Session, "key"),
    "session_name.title": (Session, "title"),
    "session.key": (Session, "key"),
    "session.title": (Session, "title"),
    "message.turn": (Turn, "client_id"),
    "message.client_id": (Message, "client_id"),
    "message.error": (Message, "error"),
    "message.model": (Message, "model"),
}
"""The column that stores each text of the schema with a maximum length."""

NOT_STORED = {
    "id": "chosen by the client for one frame",
    "synced.cursor": "computed from several columns",
    "bye.reason": "a fixed set of codes",
}


def max_length(model: type[models.Model], column: str) -> int:
    field = model._meta.get_field(column)
    assert isinstance(field, models.CharField)
    assert field.max_length is not None
    return field.max_length


def lengths(node: object, *path: str) -> Iterator[tuple[str, int]]:
    """Yield the path and length of each text with a `maxLength`, or with one in its `pattern`."""
    if isinstance(node, list):
        for item in node:
            yield from lengths(item, *path)
    elif isinstance(node, dict):
        if "maxLength" in node:
            yield ".".join(path), node["maxLength"]
        if in_pattern := re.search(r"\{\d+,(\d+)\}", str(node.get("pattern", ""))):
            yield ".".join(path), int(in_pattern[1])
        for name, below in node.items():
            is_keyword = name in ("properties", "anyOf", "oneOf", "items")
            yield from lengths(below, *path, *([] if is_keyword else [name]))


def test_each_length_in_the_schema_is_that_of_its_column():
    found = dict(lengths(SCHEMA["$defs"]))
    stored = {name: length for name, length in found.items() if name not in NOT_STORED}
    assert stored == {name: max_length(*column) for name, column in COLUMNS.items()}
    assert set(found) == {*COLUMNS, *NOT_STORED}


@pytest.mark.parametrize(
    ("check", "model", "column"),
    [
        (codec.check_client_id, Message, "client_id"),
        (codec.check_client_id, Turn, "client_id"),
        (codec.check_client_id, Feedback, "turn"),
        (codec.check_client_id, Session, "running"),
        (codec.check_key, Session, "key"),
        (check_session_key, Session, "key"),
    ],
)
def test_each_check_accepts_what_its_column_can_store_and_no_more(check, model, column):
    length = max_length(model, column)
    check("x" * length)
    with pytest.raises(BadInput):
        check("x" * (length + 1))


def test_a_title_has_the_length_of_its_column():
    assert max_length(Session, "title") == MAX_TITLE_CHARS


def test_a_reason_of_feedback_has_the_length_of_its_column():
    assert max_length(Feedback, "reason") == MAX_FEEDBACK_CHARS


def test_the_name_of_a_model_is_truncated_to_its_columns():
    row = codec.encode({"role": "assistant", "content": ""}, model="x" * 1_000)
    assert len(row.model) == max_length(Message, "model") == max_length(Turn, "model")
