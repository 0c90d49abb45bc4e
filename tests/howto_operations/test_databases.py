"""The settings of databases, logins and poolers in the how-tos of operations."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from django.db import connection
from django.db.utils import ConnectionHandler
from django.utils.module_loading import import_string

from chatmemory import services
from chatmemory.models import Message
from tests.blocks import block_with
from tests.factories import BY, make_messages
from tests.howto_operations.checking import check
from tests.pooling import through_pgbouncer
from tests.test_examples import run_example


@pytest.mark.django_db
def test_a_connection_finds_the_primary_of_several_hosts(postgresql):
    """Of docs/howto/backup.md, with two names of one server."""
    here = connection.settings_dict
    names = run_example(
        "docs/howto/backup.md", "target_session_attrs", DATABASES={"default": {**here}}
    )
    found = names["DATABASES"]["default"]
    assert found["HOST"] == "db1,db2"
    found["HOST"] = f"{here['HOST']},{here['HOST']}"
    found["PORT"] = here["PORT"] or "5432"
    other: Any = ConnectionHandler({"default": found})["default"]
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_is_in_recovery()")
            assert cursor.fetchone() == (False,)
        assert other.pool.max_size == 10
    finally:
        other.close()
        other.close_pool()


def test_the_middleware_of_the_page_of_erasures_exists():
    """It is tested in tests/services/retention/test_accounts.py."""
    names = run_example("docs/howto/erasure.md", "user_deletions", MIDDLEWARE=["first"])
    first, added = names["MIDDLEWARE"]
    assert first == "first"
    assert callable(import_string(added))


@pytest.mark.slow
def test_the_settings_of_tokens_pass_the_checks(tmp_path):
    """Of docs/howto/running.md."""
    text = block_with("docs/howto/running.md", '"VALID_LOGINS"').text
    app = 'INSTALLED_APPS = [*INSTALLED_APPS, "rest_framework.authtoken"]\n'
    assert check(tmp_path, app + text) == ""


POOLER = {
    "example = host=db1 dbname=example": "* = host={HOST} port={PORT} user={USER}",
    "listen_port = 6432": "listen_port = {port}\nunix_socket_dir =",
    "auth_type = scram-sha-256\nauth_file = /etc/pgbouncer/userlist.txt": "auth_type = any",
}
"""What the configuration of a test has in place of the page's."""


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_session_is_written_through_the_pooler(postgresql, tmp_path):
    """Of docs/howto/scaling-out.md."""
    text = block_with("docs/howto/scaling-out.md", "pool_mode").text
    for old, new in POOLER.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    with through_pgbouncer(tmp_path, text):
        for number in range(5):
            services.append_messages(
                session_key="talk",
                scope="server",
                by=BY,
                messages=make_messages(f"{number}"),
                create=True,
            )
            with closing(connection.cursor()) as cursor:
                cursor.execute("SHOW max_connections")
        rows = services.read_history(session_key="talk", scope="server", by=BY).rows
        assert [row.text for row in rows] == ["0", "1", "2", "3", "4"]
    assert Message.objects.count() == 5
