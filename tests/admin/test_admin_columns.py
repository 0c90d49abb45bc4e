"""No column of a session can be forgotten: the admin shows each, or it is on a list here."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets

from chatmemory.models import Session

FORGOTTEN = "show this column, or state the reason why not: CONTRIBUTING.md, How to add a column"
NOT_SHOWN = {
    "id": "the address of the page",
    "epoch": "a random number that fences writers",
    "fence": "a counter of runs",
    "last_active_day": "the day of last_message_at",
    "removed_scope": "the scope before a purge, which a restore uses",
    "revision": "a counter for clients",
    "rows_revision": "a counter for clients",
    "stored_from": "moved by the vacuum",
    "superseded_to": "computed from the turns",
}


def test_each_column_of_a_session_is_shown_or_has_a_reason():
    model_admin = admin.site._registry[Session]
    fieldsets = (*model_admin.fieldsets, model_admin.transcript_fieldset)
    shown = set(flatten_fieldsets(fieldsets))
    columns = {field.name for field in Session._meta.concrete_fields}
    assert columns - shown - set(NOT_SHOWN) == set(), FORGOTTEN
    assert set(NOT_SHOWN) & shown == set(), "shown, so it needs no reason"
    assert set(NOT_SHOWN) <= columns, "no such column"
