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


@contextmanager
def through_pgbouncer(folder: Path) -> Iterator[None]:
    """Connect through a PgBouncer that gives another server connection to each transaction."""
    program = shutil.which("pgbouncer") or missing("PgBouncer is not installed")
    there, port = connection.settings_dict, free_port()
    config = folder / "pgbouncer.ini"
    config.write_text(
        "[databases]\n"
        f"* = host={there['HOST']} port={there['PORT'] or 5432} user={there['USER']}\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\nignore_startup_parameters = options\n"
        "server_round_robin = 1\n"
    )
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
