"""The tables match the models, and the migrations run in both directions, on each database."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.models import UniqueConstraint
from django.test.utils import CaptureQueriesContext

from chatmemory.database.refusals import is_client_id_stored, read_session_state
from chatmemory.models import Message
from chatmemory.models.fields import KeyField
from chatmemory.models.indexes import UniqueIfSet
from tests.factories import make_session

pytestmark = [pytest.mark.django_db, pytest.mark.database]

APPS = ("chatmemory", "chatmemory_langgraph", "chatmemory_search", "chatmemory_statistics")

DEPENDENT = {"chatmemory": ("chatmemory_langgraph", "chatmemory_search")}
"""The apps whose tables refer to those of another app."""

KEY_COLUMNS = [
    (model._meta.db_table, field.column)
    for app in APPS
    for model in apps.get_app_config(app).get_models()
    for field in model._meta.concrete_fields
    if isinstance(field, KeyField)
]


def tables(app: str) -> set[str]:
    """Return the tables of an app that the database has."""
    of_app = {model._meta.db_table for model in apps.get_app_config(app).get_models()}
    return of_app & {*connection.introspection.table_names()}


@pytest.mark.parametrize("app", APPS)
def test_no_migration_is_missing(app):
    call_command("makemigrations", app, check=True, dry_run=True)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("app", APPS)
def test_the_migrations_run_forwards_and_backwards(app):
    before = {name: tables(name) for name in APPS}
    removed = (app, *DEPENDENT.get(app, ()))
    latest = [MigrationLoader(connection).graph.leaf_nodes(name) for name in removed]
    assert [len(nodes) for nodes in latest] == [1] * len(removed)
    latest = [nodes[0] for nodes in latest]
    try:
        MigrationExecutor(connection).migrate([(app, None)])
        assert {name: tables(name) for name in APPS} == before | {name: set() for name in removed}
    finally:
        MigrationExecutor(connection).migrate(latest)
    assert {name: tables(name) for name in APPS} == before
    assert before[app]


def test_the_session_table_leaves_room_for_updates_in_place(postgresql):
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'chatmemory_session'")
        assert cursor.fetchone() == (["fillfactor=85"],)


def test_turns_are_vacuumed_by_their_number(postgresql):
    """The share of 20 % that is the default leaves the turns of the newest weeks for months."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'chatmemory_turn'")
        (options,) = cursor.fetchone()
    assert sorted(options) == [
        "autovacuum_vacuum_insert_scale_factor=0",
        "autovacuum_vacuum_insert_threshold=10000",
        "autovacuum_vacuum_scale_factor=0",
        "autovacuum_vacuum_threshold=10000",
    ]


@pytest.mark.parametrize(("table", "column"), KEY_COLUMNS)
def test_keys_are_compared_byte_by_byte(table, column):
    if connection.vendor != "mysql":
        pytest.skip("other databases compare so by default")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT collation_name FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s",
            [table, column],
        )
        assert cursor.fetchone() == ("utf8mb4_nopad_bin",)


def test_no_session_column_that_each_append_changes_has_an_index():
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, "chatmemory_session")
    indexed = {c for each in constraints.values() if each["index"] for c in each["columns"]}
    changed = {"last_seq", "first_seq", "tokens", "last_message_at", "revision", "fence"}
    assert not indexed & (changed | {"running", "waiting", "epoch"})


def test_the_foreign_keys_of_messages_and_turns_have_no_separate_index():
    with connection.cursor() as cursor:
        for table in ("chatmemory_message", "chatmemory_turn"):
            found = connection.introspection.get_constraints(cursor, table).values()
            assert [c for c in found if c["index"] and c["columns"] == ["session_id"]] == []


@pytest.mark.regression
@pytest.mark.database
def test_checks_pass_without_a_warning_on_each_database():
    messages = [m for m in run_checks(databases=["default"]) if m.id.startswith("models.")]
    assert messages == []


PARTIAL_INDEXES = [
    ("chatmemory_turn", "chatmemory_turn_live", ["status", "scope"]),
    ("chatmemory_turn", "chatmemory_turn_replaces", ["session_id", "replaces_to"]),
    ("chatmemory_message", "chatmemory_message_client_id", ["session_id", "client_id"]),
]


def check_partial(table: str, name: str, columns: list[str]) -> None:
    """Check that an index exists, and that it is partial if the database supports that."""
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, table)
    assert found[name]["columns"] == columns
    definition = {
        "sqlite": "SELECT sql FROM sqlite_master WHERE name = %s",
        "postgresql": "SELECT indexdef FROM pg_indexes WHERE indexname = %s",
    }
    if connection.vendor in definition:
        with connection.cursor() as cursor:
            cursor.execute(definition[connection.vendor], [name])
            assert "WHERE" in cursor.fetchone()[0]


@pytest.mark.parametrize(("table", "name", "columns"), PARTIAL_INDEXES)
def test_an_index_is_partial_if_the_database_supports_it(table, name, columns):
    check_partial(table, name, columns)


@pytest.mark.django_db(transaction=True)
def test_the_partial_index_is_kept_if_its_constraint_or_table_is_made_again():
    constraint = next(c for c in Message._meta.constraints if isinstance(c, UniqueIfSet))
    with connection.schema_editor() as editor:
        editor.remove_constraint(Message, constraint)
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, "chatmemory_message")
    # SQLite removes it by a copy of the table, with the constraints that the model has.
    assert constraint.name not in found or connection.vendor == "sqlite"
    with connection.schema_editor() as editor:
        editor.add_constraint(Message, constraint)
    check_partial(*PARTIAL_INDEXES[-1])


def test_a_change_to_a_partial_unique_index_needs_a_migration():
    columns = {"fields": ["session", "client_id"], "name": "any"}
    assert UniqueIfSet(**columns) == UniqueIfSet(**columns)
    assert UniqueIfSet(**columns) != UniqueConstraint(**columns)
    assert UniqueConstraint(**columns) != UniqueIfSet(**columns)


@pytest.mark.parametrize(
    "search",
    [
        lambda session: is_client_id_stored(session.pk, "c7"),
        lambda session: read_session_state(session.scope, session.key, "c7"),
    ],
    ids=["stored", "state"],
)
def test_a_search_for_a_client_id_uses_its_index(search):
    session = make_session(last_seq=300)
    Message.stored.bulk_create(
        Message(session=session, seq=n, role="user", tokens=1, client_id=f"c{n}" if n % 2 else None)
        for n in range(1, 301)
    )
    with CaptureQueriesContext(connection) as queries:
        assert search(session)
    plan = {"sqlite": "EXPLAIN QUERY PLAN"}.get(connection.vendor, "EXPLAIN")
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # All that are joined: earlier tests leave other estimates.
            cursor.execute("ANALYZE chatmemory_message, chatmemory_session, chatmemory_turn")
            cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"{plan} {queries[0]['sql']}")
        assert "chatmemory_message_client_id" in str(cursor.fetchall())


@pytest.mark.parametrize("table", ["chatmemory_message", "chatmemory_turn"])
def test_columns_of_fixed_width_come_first_widest_first(postgresql, table):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attlen FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
            "ORDER BY attnum",
            [table],
        )
        widths = [width for (width,) in cursor.fetchall()]  # -1 if it varies
    assert widths == sorted(widths, reverse=True)
