"""Tables of an earlier version are reported, with what to do."""

from __future__ import annotations

import io
import re

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from chatmemory.formats.exporting import export_sessions
from chatmemory.models import Job, Session
from chatmemory.services import append_messages, tag_session
from chatmemory.services.integrity import tables
from chatmemory.services.integrity.tables import REMEDY, faults, wrong_tables
from tests.factories import TALK, make_messages, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.regression]


@pytest.fixture
def old_table(transactional_db):
    """Remove a column, as an earlier version of the migration made the table."""
    column = Job._meta.get_field("cancel_requested_at")
    with connection.schema_editor() as editor:
        editor.remove_field(Job, column)
    yield
    with connection.schema_editor() as editor:
        editor.add_field(Job, column)


SENTENCE = "Table chatmemory_job lacks cancel_requested_at."


def test_tables_that_fit_are_not_reported(django_assert_num_queries):
    with django_assert_num_queries(1):
        assert wrong_tables() == []
    assert run_checks(databases=["default"], tags=["database"]) == []


@pytest.mark.slow
def test_a_missing_column_is_reported_everywhere(old_table, settings):
    secret = "k" * 32
    settings.CHATMEMORY = {**settings.CHATMEMORY, "HEALTH_TOKEN": secret, "DB_THREADS": 0}
    [message] = run_checks(databases=["default"], tags=["database"])
    assert (message.id, message.msg, message.hint) == ("chatmemory.W031", SENTENCE, REMEDY)
    output = io.StringIO()
    with pytest.raises(CommandError, match="1 finding not repaired"):
        call_command("chatmemory_check", stdout=output)
    assert output.getvalue().startswith(f"{SENTENCE} {REMEDY}\n")
    client = Client()
    answer = client.get("/api/health/", headers={"authorization": f"Bearer {secret}"})
    assert (answer.status_code, answer.json()["tables"]) == (503, False)
    client.force_login(make_user("root", is_staff=True, is_superuser=True))
    page = client.get("/admin/chatmemory/maintenance/").text
    assert SENTENCE in page
    assert "migrate chatmemory zero" in page


@pytest.mark.slow
def test_the_steps_of_the_remedy_move_all_sessions_to_new_tables(transactional_db, tmp_path):
    append_messages(**TALK, messages=make_messages("one", "two"), create=True)
    tag_session(**TALK, tag="contract", reason="")
    before = list(export_sessions(Session.objects.all(), format="jsonl"))
    file = str(tmp_path / "all.jsonl")
    options = {
        "chatmemory_export": ["--output", file, "--by", "me", "--reason", "move"],
        "chatmemory_import": [file, "--by", "me", "--reason", "move"],
    }
    steps = [step.split() for step in re.findall("`([^`]*)`", REMEDY)]
    assert [name for name, *_ in steps[1:]] == [
        "chatmemory_export",
        "migrate",
        "migrate",
        "chatmemory_import",
    ]
    try:
        for name, *arguments in steps[1:]:
            call_command(name, *arguments, *options.get(name, []), verbosity=0)
    finally:
        call_command("migrate", verbosity=0)
    assert list(export_sessions(Session.objects.all(), format="jsonl")) == before


def test_other_columns_are_reported_if_rows_cannot_be_stored():
    stored = {str(field.column): (field.null, False) for field in Job._meta.concrete_fields}
    others = {"optional": (True, False), "filled": (False, True)}
    assert [*faults(Job, {**stored, **others})] == []
    strict = {"started_at": (False, False), "required": (False, False)}
    assert [*faults(Job, {**stored, **others, **strict})] == [
        "requires required, which no model has",
        "refuses NULL in started_at",
    ]


def test_nothing_is_reported_before_the_first_migration(monkeypatch):
    monkeypatch.setattr(Session._meta, "db_table", "other")
    assert wrong_tables() == ["Table other is missing."]
    monkeypatch.setattr(Job._meta, "db_table", "another")
    [message] = run_checks(databases=["default"], tags=["database"])  # one hint for all tables
    assert message.msg == "Table other is missing. Table another is missing."
    monkeypatch.setattr(tables, "installed_models", lambda: [Session])
    assert wrong_tables() == []
