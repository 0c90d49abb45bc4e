"""A PgBouncer between the tests and PostgreSQL, and the pools of Django's connections."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from django.db import connection

from tests.conftest import missing
from tests.servers import free_port, is_listening, wait_for


def reconnect() -> None:
    """Close the connection, and all others of its pool."""
    backend: Any = connection
    backend.close()
    if connection.vendor == "postgresql":
        backend.close_pool()


CONFIG = """\
[databases]
* = host={HOST} port={PORT} user={USER}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
ignore_startup_parameters = options
server_round_robin = 1
"""


@contextmanager
def through_pgbouncer(folder: Path, text: str = CONFIG) -> Iterator[None]:
    """Connect through a PgBouncer that gives another server connection to each transaction.

    `text` is its configuration, with places for the address of the database and for its own port.
    """
    program = shutil.which("pgbouncer") or missing("PgBouncer is not installed")
    there, port = connection.settings_dict, free_port()
    config = folder / "pgbouncer.ini"
    config.write_text(text.format_map({**there, "PORT": there["PORT"] or 5432, "port": port}))
    user = ["-u", "nobody"] if os.geteuid() == 0 else []  # it refuses to run as root
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603  # a fixed command
            [program, *user, str(config)], stdout=log, stderr=log
        )
    direct_port = there["PORT"]
    try:
        wait_for(lambda: is_listening(port), "PgBouncer does not listen", folder / "log")
        reconnect()
        there["PORT"] = port
        open_two_servers(port)
        yield
    finally:
        there["PORT"] = direct_port
        reconnect()
        process.terminate()
        process.wait()


def open_two_servers(port: int) -> None:
    """Let PgBouncer open two server connections, which it then uses by turns."""
    there = connection.settings_dict
    address = {"host": "127.0.0.1", "port": port, "user": there["USER"], "dbname": there["NAME"]}
    with closing(psycopg.connect(**address)) as one, closing(psycopg.connect(**address)) as other:
        one.execute("SELECT 1")  # psycopg begins a transaction
        other.execute("SELECT 1")
