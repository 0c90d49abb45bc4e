"""Each service that changes or removes messages reaches their derived rows."""

from __future__ import annotations

import inspect
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.models import Session
from chatmemory.services import Actor
from chatmemory.services.audit.seals import seal_audit
from chatmemory.services.integrity.database_restore import recover_restored_database
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.retention.retention import expire_sessions
from chatmemory.services.transfers.imports import (
    begin_import,
    discard_import,
    finish_import,
    import_rows,
)
from chatmemory.services.turns.progress import finish_turn
from chatmemory.services.turns.stops import stop_running_turn
from tests.factories import BY, TALK, age_audit, make_messages, make_user, make_visitor

pytestmark = pytest.mark.django_db

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

WRITES = re.compile(
    r'(INSERT INTO|UPDATE|DELETE FROM) ["`]?chatmemory_(message|turn)\b'
    r'|UPDATE ["`]?chatmemory_session["`]? SET [^W]*\b(first_seq|epoch|superseded_to|stored_from)\b'
    r'|DELETE FROM ["`]?chatmemory_session\b'
)


def cleared():
    entry = services.clear_session(**TALK, reason="")
    return {"entry_pk": entry.pk, "by": BY, "scope": TALK["scope"], "reason": ""}


def trimmed():
    services.trim_session(**TALK, before_seq=3, reason="")
    age_audit(timedelta(days=100))
    return {}


def imported():
    columns = {"created_at": Session.objects.get().created_at, "last_seq": 0, "stored_from": 1}
    address = {"session_key": "import", "by": BY, "scope": TALK["scope"]}
    found = begin_import(session=columns, digest="x", **address)
    return {"found": found}


def adopted():
    guest = make_visitor()
    services.append_messages(
        session_key="talk", by=guest.actor, messages=make_messages("one"), create=True
    )
    return {"by": Actor.user(make_user()), "visitor": guest.actor}


def waiting(client_id="w"):
    services.admit_turn(**TALK, client_id=client_id, content="x")
    return {**TALK, "turn": client_id}


def replied():
    claim = services.admit_turn(**TALK, client_id="r", content="x", owner="me").claim
    finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": "y"})
    return {**TALK, "turn": "r", "value": 1}


def edited():
    return {**TALK, "client_id": "e", "content": "x", "owner": "me", "replaces": 3, "expect_seq": 3}


def expired():
    Session.objects.update(expires_at=LONG_AGO)
    return {}


CALLS = {
    "admit_turn": edited,
    "adopt_visitor": adopted,
    "append_messages": lambda: {**TALK, "messages": make_messages("five")},
    "clear_session": lambda: {**TALK, "reason": ""},
    "discard_import": imported,
    "erase_person": lambda: {"by": BY, "scope": TALK["scope"], "reason": ""},
    "expire_sessions": expired,
    "purge_session": lambda: {**TALK, "reason": ""},
    "recover_restored_database": lambda: {"by": BY, "reason": ""},
    "redact_message": lambda: {**TALK, "seq": 1, "reason": ""},
    "redact_turn": lambda: {**waiting(), "reason": ""},
    "restore_session": cleared,
    "set_feedback": replied,
    "stop_turn": waiting,
    "trim_session": lambda: {**TALK, "before_seq": 3, "reason": ""},
    "vacuum": trimmed,
}
"""For each service that writes messages or what hides them: prepares a call, returns arguments."""

UNREACHED = {
    "append_messages": "stores new messages",
    "restore_session": "shows messages again, and their rows with them",
    "set_feedback": "changes the value on a reply, and no word",
    "stop_turn": "ends a turn without a message; its text stays",
}
"""Services that write messages or what hides them, and reach no derived row."""

OTHERS = {
    *("add_note", "delete_note", "tag_session", "untag_session", "update_session"),
    *("archive_session", "unarchive_session", "hold_session", "release_session", "open_session"),
    *("create_visitor", "issue_ticket", "use_ticket", "seal_audit"),
    # Calls purge_session or erase_person; stops a run, which stores its own end; stores new rows.
    *("deleting_users", "replay_erasures", "stop_running_turn"),
    *("begin_import", "import_rows", "finish_import"),
}
"""Services that write neither messages nor what hides them, or only by those that are called."""

INTERNAL = (
    *(begin_import, import_rows, finish_import, discard_import),
    *(expire_sessions, recover_restored_database, seal_audit, stop_running_turn, vacuum),
)
"""Services that only our commands and views call."""

WALKED: dict[str, Any] = {
    **{name: getattr(services, name) for name in services.__all__},
    **{function.__name__: function for function in INTERNAL},
}

IS_READER = re.compile(
    r"(read|list|get|preview|find|count|is|check|verify|offer|authenticate)_"
    r"|begin_export|audit_state|sessions_of|user_scope"
)


def test_each_service_is_called_or_writes_no_message():
    names = {
        name
        for name, found in WALKED.items()
        if inspect.isfunction(found)
        and not inspect.iscoroutinefunction(found)
        and not IS_READER.match(name)
    }
    assert names == CALLS.keys() | OTHERS


@pytest.mark.parametrize("name", CALLS)
def test_a_service_that_writes_messages_reaches_their_derived_rows(shop, settings, name):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 30}
    services.append_messages(
        **TALK, messages=make_messages("one", "two", "three", "four"), create=True
    )
    arguments = CALLS[name]()
    with CaptureQueriesContext(connection) as queries:
        WALKED[name](**arguments)
    statements = [query["sql"] for query in queries]
    assert any(map(WRITES.search, statements)), "It writes no message: list it in OTHERS."
    is_reached = any("shop_" in statement for statement in statements)
    assert is_reached != (name in UNREACHED)
