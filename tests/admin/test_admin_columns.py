"""No column of a session can be forgotten: its page shows each, or it is on a list here."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.utils.formats import date_format

from chatmemory import services
from chatmemory.models import Session, Turn
from tests.admin.test_admin import at, operator, shown
from tests.factories import make_session, make_user

FORGOTTEN = "show this column, or state the reason why not: CONTRIBUTING.md, How to add a column"
NOT_SHOWN = {
    "epoch": "a random number that fences writers",
    "fence": "a counter of runs",
    "last_active_day": "the day of last_message_at",
    "removed_scope": "shown as the scope of a purged session",
    "revision": "a counter for clients",
    "rows_revision": "a counter for clients",
    "superseded_to": "computed from the turns",
    "origin_row": "for the next import of the same conversation",
}
TIMES = {
    "created_at": datetime(2001, 1, 1, tzinfo=UTC),
    "last_message_at": datetime(2002, 1, 1, tzinfo=UTC),
    "expires_at": datetime(2103, 1, 1, tzinfo=UTC),
    "archived_at": datetime(2004, 1, 1, tzinfo=UTC),
    "pinned_at": datetime(2005, 1, 1, tzinfo=UTC),
    "held_at": datetime(2006, 1, 1, tzinfo=UTC),
    "removed_at": datetime(2007, 1, 1, tzinfo=UTC),
}
TEXTS = {
    "key": "the-key",
    "title": "The title",
    "instructions": "The instructions",
    "origin": "product:7",
}
NUMBERS = {"first_seq": 4001, "last_seq": 5003, "stored_from": 3777, "tokens": 70021}


@pytest.mark.django_db
def test_each_column_of_a_session_is_shown_or_has_a_reason():
    owner = make_user("the-owner")
    session = make_session(TEXTS["key"], owner=owner)
    columns = {"metadata": {"the": "metadata"}, "running": "c1", "waiting": 8123}
    columns["ttl_seconds"] = 3 * 86_400
    Session.objects.filter(pk=session.pk).update(**TIMES, **TEXTS, **NUMBERS, **columns)
    Turn.objects.create(session=session, client_id="c1", status="running", epoch=1)
    page = shown(operator("view_session", "view_transcript").get(at("change", session)))
    expected = {
        **{name: date_format(moment, "DATETIME_FORMAT") for name, moment in TIMES.items()},
        **TEXTS,
        "id": f"ID {session.pk} ",
        "scope": services.user_scope(owner),
        "owner": "Owner the-owner",
        "metadata": "&quot;the&quot;: &quot;metadata&quot;",
        "running": "Running turn running",
        "waiting": "Waiting messages 8,123",
        "first_seq": "4001 to ",
        "last_seq": " to 5003",
        "stored_from": "224, until vacuum",
        "tokens": "70,021 ever stored",
        "ttl_seconds": "3 days after the last message",
    }
    assert {name: text for name, text in expected.items() if text not in page} == {}
    columns = {field.name for field in Session._meta.concrete_fields}
    assert columns - set(expected) - set(NOT_SHOWN) == set(), FORGOTTEN
    assert set(expected) & set(NOT_SHOWN) == set(), "shown, so it needs no reason"
    assert set(NOT_SHOWN) <= columns, "no such column"
