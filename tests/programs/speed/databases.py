"""The databases of the benchmark, which it creates and drops. It never uses the live one."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tests.programs.speed.cases import BenchError

OWN_PREFIX = "chatmemory_bench"
"""The prefix of the name of each database of the benchmark."""
APPLICATION_PREFIX = "chatmemory_bench:"
SMALL, LARGE = "small", "large"
SQLITE_FULL, SQLITE_NORMAL = "sqlite-full", "sqlite-normal"

Entry = dict[str, Any]
"""An entry of Django's setting DATABASES."""

_CREATE, _DROP = "create", "drop"


class Databases:
    """The databases of one run, created when they are first used."""

    def __init__(self, live: Mapping[str, Any], *, vendor: str, name: str, folder: Path) -> None:
        """`live` is the project's entry; SQLite files are stored in `folder`. Raises BenchError."""
        check_name(name, live)
        if vendor not in _ENGINES:
            raise BenchError(f"The benchmark does not know the database {vendor}.")
        self.vendor = vendor
        self._live = live
        self._name = name
        self._folder = folder
        self._secret_key = secrets.token_hex()
        self._created: dict[str, dict[str, str]] = {}
        """The facts of each database."""

    def environment(self, kind: str) -> dict[str, str]:
        """Return the environment of a new process that uses a database; create it first."""
        if kind not in self._created:
            self._created[kind] = json.loads(self._run(_CREATE, kind))
        return self._environment(kind)

    def facts(self) -> dict[str, str]:
        """Return the version of the server, and its settings for durability."""
        self.environment("default")
        return self._created["default"]

    def drop(self) -> None:
        """Drop all databases of the run."""
        for kind in self._created:
            self._run(_DROP, kind)
        self._created.clear()

    def _environment(self, kind: str) -> dict[str, str]:
        given = {"secret_key": self._secret_key, "database": self._entry(kind)}
        given |= {"server_database": self._entry(kind, has_pool=True)}
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path),
            "DJANGO_SETTINGS_MODULE": "tests.programs.speed.settings",
            "CHATMEMORY_BENCH": json.dumps(given),
        }

    def _entry(self, kind: str, *, has_pool: bool = False) -> Entry:
        if kind in (SQLITE_FULL, SQLITE_NORMAL) or self.vendor == "sqlite":
            return self._sqlite_entry(kind)
        name = self._name if kind == "default" else f"{self._name}_{kind}"
        entry = {key: value for key, value in self._live.items() if key in _CONNECTION_KEYS}
        options = {
            key: value for key, value in self._live.get("OPTIONS", {}).items() if key != "pool"
        }
        if self.vendor == "postgresql":
            options["application_name"] = APPLICATION_PREFIX + secrets.token_hex(8)
            if has_pool and find_spec("psycopg_pool"):
                options["pool"] = {"min_size": 1, "max_size": 10, "timeout": 10}
        return {
            **entry,
            "ENGINE": _ENGINES[self.vendor],
            "NAME": name,
            "OPTIONS": options,
            "CONN_MAX_AGE": 0 if "pool" in options else None,
            "TEST": {"NAME": name, **({"CHARSET": "utf8mb4"} if self.vendor == "mysql" else {})},
        }

    def _sqlite_entry(self, kind: str) -> Entry:
        mode = "FULL" if kind == SQLITE_FULL else "NORMAL"
        file = str(self._folder / f"{self._name}_{kind}.sqlite3")
        return {
            "ENGINE": _ENGINES["sqlite"],
            "CONN_MAX_AGE": None,
            "NAME": file,
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "init_command": f"PRAGMA journal_mode=WAL; PRAGMA synchronous={mode}",
                "timeout": 20,
            },
            "TEST": {"NAME": file},
        }

    def _run(self, action: str, kind: str) -> str:
        command = [sys.executable, "-m", "tests.programs.speed.databases", action]
        done = subprocess.run(  # noqa: S603  # our own command line
            command, env=self._environment(kind), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchError(f"Cannot {action} the database of the benchmark:\n{done.stderr}")
        return done.stdout


_POSTGRESQL_SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
_MARIADB_SETTINGS = ("version", "innodb_flush_log_at_trx_commit", "sync_binlog")
_ENGINES = {
    "postgresql": "django.db.backends.postgresql",
    "sqlite": "django.db.backends.sqlite3",
    "mysql": "django.db.backends.mysql",
}
"""By vendor. Not the project's own, which may wrap one of these."""
_CONNECTION_KEYS = ("USER", "PASSWORD", "HOST", "PORT")


def check_name(name: str, live: Mapping[str, Any]) -> None:
    """Check that a database belongs to the benchmark and is not the live one. Raises BenchError."""
    if not name.startswith(OWN_PREFIX):
        raise BenchError(
            f"The name of the benchmark's database must begin with {OWN_PREFIX}, not be {name!r}."
        )
    if Path(str(live.get("NAME", ""))).name.startswith(OWN_PREFIX):
        raise BenchError(
            f"The database of these settings, {live['NAME']}, has a name that is reserved for the "
            f"benchmark: {OWN_PREFIX}…. Use other settings."
        )


def require_own(connection: BaseDatabaseWrapper) -> None:
    """Check that a connection leads to a database of the benchmark. Raises BenchError."""
    name = Path(str(connection.settings_dict["NAME"])).name
    if connection.vendor != "sqlite":
        function = "current_database" if connection.vendor == "postgresql" else "database"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {function}()")
            (name,) = cursor.fetchone()
    if not str(name).startswith(OWN_PREFIX):
        raise BenchError(f"{name} is not a database of the benchmark.")


def main(action: str) -> None:
    """Create (and describe) or drop the database of this process's settings."""
    django.setup()
    connection = connections["default"]
    name = str(connection.settings_dict["NAME"])
    check_name(Path(name).name, {})  # with other settings it would be the live database
    if action == _CREATE:
        connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        require_own(connection)
        sys.stdout.write(json.dumps(_facts(connection)))
    else:
        connection.creation.destroy_test_db(name, verbosity=0)


def _facts(connection: BaseDatabaseWrapper) -> dict[str, str]:
    queries = {"version": "SELECT sqlite_version()", "synchronous": "PRAGMA synchronous"}
    if connection.vendor != "sqlite":
        is_postgresql = connection.vendor == "postgresql"
        names = _POSTGRESQL_SETTINGS if is_postgresql else _MARIADB_SETTINGS
        show = "SHOW {}" if is_postgresql else "SELECT @@{}"
        queries = {name: show.format(name) for name in names}
    found = {"database": connection.display_name}
    with connection.cursor() as cursor:
        for name, query in queries.items():
            cursor.execute(query)
            found[name] = str(cursor.fetchone()[0])
    return found


if __name__ == "__main__":
    main(sys.argv[1])
