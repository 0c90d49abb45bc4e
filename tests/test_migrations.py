"""The tables: as the models say, there and back again, on each database."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

pytestmark = [pytest.mark.django_db, pytest.mark.database]

KEY_COLUMNS = [
    ("chatmemory_session", "scope"),
    ("chatmemory_session", "key"),
    ("chatmemory_session", "running"),
    ("chatmemory_session", "removed_scope"),
    ("chatmemory_message", "client_id"),
    ("chatmemory_turn", "client_id"),
]


def tables() -> set[str]:
    return {
        name for name in connection.introspection.table_names() if name.startswith("chatmemory_")
    }


def test_no_migration_is_missing():
    call_command("makemigrations", "chatmemory", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_the_migrations_go_forwards_and_back():
    before = tables()
    latest = MigrationLoader(connection).graph.leaf_nodes("chatmemory")
    assert len(latest) == 1
    try:
        MigrationExecutor(connection).migrate([("chatmemory", None)])
        assert tables() == set()
    finally:
        MigrationExecutor(connection).migrate(latest)
    assert tables() == before != set()


def test_pages_of_sessions_have_room_for_new_versions(postgresql):
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'chatmemory_session'")
        assert cursor.fetchone() == (["fillfactor=85"],)


@pytest.mark.parametrize(("table", "column"), KEY_COLUMNS)
def test_keys_are_compared_byte_by_byte(table, column):
    if connection.vendor != "mysql":
        pytest.skip("the other databases do by default")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT collation_name FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s",
            [table, column],
        )
        assert cursor.fetchone() == ("utf8mb4_nopad_bin",)


def test_no_index_is_on_a_session_column_that_each_append_touches():
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, "chatmemory_session")
    indexed = {c for each in constraints.values() if each["index"] for c in each["columns"]}
    touched = {"last_seq", "first_seq", "tokens", "last_message_at", "revision", "fence"}
    assert not indexed & (touched | {"running", "waiting", "epoch"})


def test_the_foreign_keys_of_messages_and_turns_have_no_index_of_their_own():
    with connection.cursor() as cursor:
        for table in ("chatmemory_message", "chatmemory_turn"):
            found = connection.introspection.get_constraints(cursor, table).values()
            assert [c for c in found if c["index"] and c["columns"] == ["session_id"]] == []


@pytest.mark.regression
@pytest.mark.database
def test_checks_pass_without_a_warning_on_each_database():
    messages = [m for m in run_checks(databases=["default"]) if m.id.startswith("models.")]
    assert messages == []


@pytest.mark.database
@pytest.mark.django_db
def test_the_index_of_live_turns_holds_no_others_where_the_database_can_do_that():
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, "chatmemory_turn")
    assert found["chatmemory_turn_live"]["columns"] == ["status", "scope"]
    definition = {
        "sqlite": "SELECT sql FROM sqlite_master WHERE name = 'chatmemory_turn_live'",
        "postgresql": "SELECT indexdef FROM pg_indexes WHERE indexname = 'chatmemory_turn_live'",
    }
    if connection.vendor in definition:
        with connection.cursor() as cursor:
            cursor.execute(definition[connection.vendor])
            assert "WHERE" in cursor.fetchone()[0]
