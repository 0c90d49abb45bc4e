"""Export, import, erasure and redaction handle each column, or a list here has the reason why not.

A new column makes these tests fail until it is handled or listed.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from django.db import models

from chatmemory.database.locks import locked_transaction
from chatmemory.formats.columns import (
    _REQUIRED,
    FEEDBACK,
    MESSAGE,
    NOTE,
    SESSION,
    TURN,
    WITHDRAWN,
    Line,
)
from chatmemory.models import Feedback, Message, Session, SessionNote, Turn, WithdrawnRange
from chatmemory.services import redact_message, redact_turn
from chatmemory.services.erasure.erasure import begin_erasure
from tests.factories import BY, TALK, make_user

pytestmark = pytest.mark.django_db

FORGOTTEN = "handle this column, or state the reason why not: CONTRIBUTING.md, How to add a column"
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)

_ROW = {"id": "identifies the row in this database", "session": "identifies the session"}
_RUN = {
    "scope": "set only while the turn waits or runs",
    "position": "a position in the queue of this database",
    "fence": "belongs to the run, which no other process continues",
    "lease_owner": "belongs to the run",
    "lease_until": "belongs to the run",
}
NOT_EXPORTED: dict[type[models.Model], dict[str, str]] = {
    Session: {
        "id": "identifies the row in this database",
        "owner": "follows from the scope",
        "superseded_to": "computed from the imported turns and withdrawn ranges",
        "epoch": "each database begins its own, to fence older writers",
        "rows_revision": "computed from the imported messages",
        "running": "exported as the status of the turn",
        "waiting": "exported as the status of the turns",
        "fence": "belongs to a run",
    },
    Message: _ROW,
    Turn: {**_ROW, **_RUN, "epoch": "that of the imported session"},
    Feedback: _ROW,
    SessionNote: _ROW,
    WithdrawnRange: {
        **_ROW,
        "emptied_to": "the vacuum after the import finds how far the content was deleted",
    },
}

OTHER_DEFAULTS = {(MESSAGE, "status"): "the model has none; nearly all rows are complete"}

_DELETED = "identifies the row until vacuum deletes it, which follows immediately"
_NUMBER = "a number or time without content; vacuum deletes it with the row"
KEPT_BY_ERASURE: dict[type[models.Model], dict[str, str]] = {
    Session: {
        **dict.fromkeys(("id", "scope", "key", "removed_scope"), _DELETED),
        **dict.fromkeys(("first_seq", "last_seq", "stored_from", "superseded_to"), _NUMBER),
        **dict.fromkeys(("epoch", "revision", "rows_revision", "fence", "tokens"), _NUMBER),
        **dict.fromkeys(("last_message_at", "last_active_day"), _NUMBER),
        **dict.fromkeys(("expires_at", "ttl_seconds"), _NUMBER),
        **dict.fromkeys(("archived_at", "pinned_at", "removed_at", "created_at"), _NUMBER),
        "held_at": "a held session is not erased",
    },
    Turn: {
        **dict.fromkeys(("id", "session", "client_id"), _DELETED),
        **dict.fromkeys(("status", "error", "model", "usage"), "of the run, not of the person"),
        **dict.fromkeys(("position", "user_seq", "replaces_from", "replaces_to"), _NUMBER),
        **dict.fromkeys(("epoch", "fence", "step", "first_text_ms"), _NUMBER),
        **dict.fromkeys(("started_at", "stop_requested_at", "created_at", "ended_at"), _NUMBER),
    },
}

_FRAME = "identifies the row or its position in the session"
_METADATA = "metadata without content, which readers and counts need"
KEPT_BY_REDACTION: dict[type[models.Model], dict[str, str]] = {
    Message: {
        **dict.fromkeys(("id", "session", "seq", "role", "turn", "step", "batch"), _FRAME),
        "client_id": "a resend stays a duplicate",
        "author": "an id without a name, as in the audit",
        **dict.fromkeys(("status", "error", "model", "feedback", "created_at"), _METADATA),
        "tokens": "recounted for the empty text",
        "revision": "raised, so that readers fetch the row again",
        "redacted": "marks the row",
    },
    Turn: {
        **dict.fromkeys(("id", "session", "user_seq", "replaces_from", "replaces_to"), _FRAME),
        "client_id": "a resend stays a duplicate",
        "position": _FRAME,
        **dict.fromkeys(("status", "error", "model", "usage", "step", "first_text_ms"), _METADATA),
        **dict.fromkeys(("epoch", "fence", "lease_owner", "lease_until", "scope"), _METADATA),
        **dict.fromkeys(("started_at", "stop_requested_at", "created_at", "ended_at"), _METADATA),
    },
    Feedback: {
        **dict.fromkeys(("id", "session", "turn", "user_seq"), _FRAME),
        **dict.fromkeys(("value", "created_at", "changed_at"), _METADATA),
    },
}


def fields_of(model: type[models.Model]) -> dict[str, models.Field[Any, Any]]:
    return {field.name: field for field in model._meta.concrete_fields}


def check_all(model, handled, reasons):
    """Check that each field is either handled or listed with a reason."""
    names = set(fields_of(model))
    assert names - set(handled) - set(reasons) == set(), FORGOTTEN
    assert set(handled) & set(reasons) == set(), "handled, so it needs no reason"
    assert set(reasons) <= names, "no such column"


def filled_value(field: models.Field[Any, Any]) -> Any:
    match field:
        case models.BooleanField():
            return True
        case models.SmallIntegerField():
            return field.flatchoices[0][0]
        case models.IntegerField():
            return 7
        case models.DateTimeField():
            return MOMENT
        case models.DateField():
            return date(2026, 1, 2)
        case models.JSONField():
            return {"a": ["b"]}
        case _:
            return "filled"


def fill(model, **columns):
    """Return a stored row with a value in each column: `columns`, or one of the right type."""
    filled = {
        name: filled_value(field)
        for name, field in fields_of(model).items()
        if not field.primary_key and not field.is_relation
    }
    row = model._base_manager.create(**{**filled, **columns})
    row.refresh_from_db()
    return row


def fill_session(**columns):
    address = {"scope": TALK["scope"], "key": TALK["session_key"], "owner": make_user()}
    open_ = dict.fromkeys(("expires_at", "held_at", "archived_at", "removed_at", "running"))
    return fill(Session, **{**address, **open_, **columns})


def fill_message(session, **columns):
    body = json.dumps({"role": "user", "content": "filled", "name": "filled"})
    fixed = {"role": "user", "status": "complete", "body": body, "redacted": False}
    return fill(Message, session=session, **{**fixed, **columns})


def fill_turn(session, **columns):
    return fill(Turn, session=session, **{"status": "failed", **columns})


def fill_feedback(session, **columns):
    return fill(Feedback, session=session, **columns)


def blanked(row) -> set[str]:
    """Return the columns that are empty now and were not before."""
    before = {name: getattr(row, name) for name in fields_of(type(row)) if hasattr(row, name)}
    row.refresh_from_db()
    return {name for name, value in before.items() if value and not getattr(row, name)}


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (Session, SESSION),
        (Message, MESSAGE),
        (Turn, TURN),
        (Feedback, FEEDBACK),
        (SessionNote, NOTE),
        (WithdrawnRange, WITHDRAWN),
    ],
)
def test_each_column_is_exported_and_imported(model, line: Line):
    check_all(model, {column.name for column in line.columns}, NOT_EXPORTED[model])


def test_an_exported_row_is_imported_unchanged():
    session = fill_session(expires_at=MOMENT, held_at=MOMENT, archived_at=MOMENT)
    for row, line in (
        (session, SESSION),
        (fill_message(session), MESSAGE),
        (fill_turn(session), TURN),
        (fill_feedback(session), FEEDBACK),
        (fill(SessionNote, session=session), NOTE),
        (fill(WithdrawnRange, session=session), WITHDRAWN),
    ):
        values = line.read(json.loads(json.dumps(line.write(row))))
        assert values == {name: getattr(row, name) for name in values}
        assert len(values) == len(line.columns)


def test_erasure_blanks_each_column_before_the_rows_are_deleted():
    session = fill_session(metadata={"a": 1}, expires_at=MOMENT, archived_at=MOMENT)
    turn = fill_turn(session, status="running", ended_at=None)
    Session.objects.filter(pk=session.pk).update(running=turn.client_id)
    session.refresh_from_db()
    with locked_transaction():
        begin_erasure(Session.objects.get(pk=session.pk), BY, "asked for it", "e1")
    check_all(Session, blanked(session), KEPT_BY_ERASURE[Session])
    check_all(Turn, blanked(turn), KEPT_BY_ERASURE[Turn])


def test_redaction_blanks_each_column_of_a_message():
    message = fill_message(fill_session(), seq=7)
    assert redact_message(**TALK, seq=7, reason="private") is not None
    check_all(Message, blanked(message), KEPT_BY_REDACTION[Message])


def test_redaction_blanks_each_column_of_a_turn():
    turn = fill_turn(session := fill_session())
    feedback = fill_feedback(session, user_seq=turn.user_seq)
    assert redact_turn(**TALK, turn=turn.client_id, reason="private") is not None
    check_all(Turn, blanked(turn), KEPT_BY_REDACTION[Turn])
    check_all(Feedback, blanked(feedback), KEPT_BY_REDACTION[Feedback])


@pytest.mark.parametrize(
    "line",
    [SESSION, MESSAGE, TURN, FEEDBACK, NOTE, WITHDRAWN],
    ids=["Session", "Message", "Turn", "Feedback", "SessionNote", "WithdrawnRange"],
)
def test_a_column_that_a_file_omits_gets_the_models_default(line):
    """A file that was exported before the column existed must not change what rows mean."""
    for column in line.columns:
        field = column.field
        by_database = getattr(field.db_default, "value", field.db_default)
        expected = by_database if field.has_db_default() else field.get_default()
        if (line, column.name) not in OTHER_DEFAULTS:
            assert column.default in (_REQUIRED, expected), column.name
