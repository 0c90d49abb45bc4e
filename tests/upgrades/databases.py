"""Load a stored database of a release; this needs no program of the vendor."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

FILES = {
    "sqlite": "sqlite.db.gz",
    "postgresql": "postgresql.sql.gz",
    "mysql": "mariadb.sql.gz",
}
"""The file of each vendor, by Django's name."""


@contextmanager
def loaded(folder: Path, name: str) -> Iterator[None]:
    """Let the connection be one to a copy of a release's database, for a block.

    `name` is that of the copy: a database on the server, or the path of a file.
    """
    dump = gzip.decompress((folder / FILES[connection.vendor]).read_bytes())
    before = connection.settings_dict["NAME"]
    _make(name, dump)
    _connect_to(name)
    try:
        _load(dump)
        _connect_to(name)  # anew, since the dump has set options of the connection
        yield
    finally:
        _connect_to(before)
        _drop(name)


def _make(name: str, dump: bytes) -> None:
    if connection.vendor == "sqlite":
        Path(name).write_bytes(dump)
        return
    _drop(name)  # of a run that was killed
    charset = " CHARACTER SET utf8mb4" if connection.vendor == "mysql" else ""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}{charset}")


def _drop(name: str) -> None:
    if connection.vendor == "sqlite":
        Path(name).unlink()
        return
    force = " WITH (FORCE)" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name}{force}")


def _connect_to(name: str) -> None:
    connection.close()
    if connection.vendor == "postgresql":
        connection.close_pool()  # type: ignore[attr-defined]  # of this vendor
    connection.settings_dict["NAME"] = name


def _load(dump: bytes) -> None:
    text = dump.decode() if connection.vendor != "sqlite" else ""
    # In a MariaDB dump no text contains a line break; psycopg sends all statements together.
    statements = text.split(";\n") if connection.vendor == "mysql" else [text]
    with connection.cursor() as cursor:
        for statement in filter(str.strip, statements):
            cursor.execute(statement)
