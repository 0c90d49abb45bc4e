"""A process that is forked after the use of Django's pool has connections of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORKS = """
import os
import django

django.setup()

from django.db import connection

from chatmemory import services

def pid():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]

def in_child():
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            services.open_session(
                session_key=f"of-{os.getpid()}", by=services.Actor.server("child"), scope="server"
            )
            os.write(writer, str(pid()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    return int(os.read(reader, 20) or 0)

connection.ensure_connection()
connection.pool.wait()
mine = {pid(), *(one.info.backend_pid for one in connection.pool._pool)}
children = [in_child()]  # while this process holds the connection
connection.close()
children += [in_child(), in_child()]  # while the connection is in the pool
assert pid() in mine, "the parent lost its connections"
assert all(children) and mine.isdisjoint(children), (mine, children)
print("done")
"""


@pytest.mark.slow
@pytest.mark.regression
def test_a_forked_process_uses_no_connection_of_its_parent(postgresql, live_database_env):
    done = subprocess.run(  # noqa: S603  # a fixed program
        [sys.executable, "-c", FORKS], env=live_database_env, capture_output=True, text=True
    )
    assert done.stdout == "done\n", done.stderr
