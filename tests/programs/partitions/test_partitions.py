"""Tables of messages and turns with partitions, `python -m tests.programs.partitions`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from chatmemory.models import Message, Session, Turn
from chatmemory.services import append_messages
from chatmemory.services.health.storage import TableSize, read_storage
from tests.database.test_session_in_statements import OF_A_PROCESS, the_life_of_a_session
from tests.factories import TALK, make_messages, make_session
from tests.programs.partitions.plans import executed_statements
from tests.programs.partitions.tables import PARTITIONS, TABLES, partition_tables

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("postgresql")]


def keys_of(table):
    """Return the unique and foreign keys of a table by name, and its other indexes."""
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, table)
    return {
        re.sub("_[0-9a-f]{8}_fk", "_fk", name): (key["columns"], key["unique"], key["foreign_key"])
        for name, key in found.items()
        if not key["primary_key"]
    }


@pytest.mark.slow
def test_a_replaced_table_has_the_same_keys_and_storage_parameters():
    before = {table: keys_of(table) for table in TABLES}
    partition_tables(connection)
    partition_tables(connection)
    assert {table: keys_of(table) for table in TABLES} == before
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), count(reloptions) FROM pg_class"
            " JOIN pg_inherits ON inhrelid = pg_class.oid AND inhparent = %s::regclass",
            [Turn._meta.db_table],
        )
        assert cursor.fetchone() == (PARTITIONS, PARTITIONS)


def test_a_table_with_rows_is_not_replaced():
    make_session()
    append_messages(**TALK, messages=make_messages("a"))
    with pytest.raises(ValueError, match="chatmemory_message has 1 rows"):
        partition_tables(connection)
    assert Message.stored.count() == 1


@pytest.mark.slow
def test_health_adds_the_sizes_of_the_partitions():
    partition_tables(connection)
    make_session()
    append_messages(**TALK, messages=make_messages("a"))
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {Message._meta.db_table}")
        cursor.execute(
            "SELECT sum(pg_total_relation_size(inhrelid)), sum(pg_indexes_size(inhrelid))"
            " FROM pg_inherits WHERE inhparent = %s::regclass",
            [Message._meta.db_table],
        )
        size_bytes, index_bytes = cursor.fetchone()
    assert size_bytes > index_bytes > 0
    found = next(found for found in read_storage() if found.table == Message._meta.db_table)
    assert found == TableSize(
        Message._meta.db_table, size_bytes=size_bytes, index_bytes=index_bytes, rows=1
    )


@pytest.mark.slow
def test_each_statement_of_a_session_touches_one_partition():
    partition_tables(connection)
    with connection.cursor() as cursor:
        # As in large tables: plans of small ones change with the statistics of other tests' rows.
        cursor.execute("SET LOCAL enable_seqscan = off")
    make_session()
    with connection.cursor() as cursor:
        # By the statistics of other tests' sessions, this address could be that of hundreds.
        cursor.execute(f"ANALYZE {Session._meta.db_table}")
    with executed_statements(connection) as executed:
        the_life_of_a_session()
    on_rows = [statement for statement in executed if statement.partitions]
    assert len(on_rows) > 50
    wide = [found.sql for found in on_rows if max(found.partitions.values()) > 1]
    assert [sql for sql in wide if not OF_A_PROCESS.search(sql)] == []
    assert len(wide) == 1


@pytest.mark.long
def test_the_program_measures_both_tables_and_leaves_no_database(tmp_path):
    command = [sys.executable, "-m", "tests.programs.partitions", "--rows=2000", "--rounds=1"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603  # our own command line
    assert (done.returncode, done.stderr) == (0, "")
    for case in ("append", "page", "turn", "queued turn"):
        assert f"| {case} |" in done.stdout
        assert f"| {case}, partitions |" in done.stdout
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'chatmemory_bench_partitions%'"
        )
        assert cursor.fetchall() == []
