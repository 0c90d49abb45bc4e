"""Store a release in tests/upgrades: its wheel, and a database of each vendor that it filled.

`make upgrade-fixtures VERSION=0.1.0` runs it. It needs PostgreSQL with pg_dump and MariaDB with
mariadb-dump, at CI_POSTGRESQL_URL and CI_MARIADB_URL.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zipfile import ZipFile

import chatmemory
from project import environment
from tests.upgrades.databases import FILES
from tests.wheels import build

HERE = Path(__file__).resolve().parent
NAME = "chatmemory_upgrade_fixtures"
POSTGRESQL = os.environ.get("CI_POSTGRESQL_URL", "postgres://postgres@127.0.0.1:5432/chatmemory")
MARIADB = os.environ.get("CI_MARIADB_URL", "mysql://root@127.0.0.1:3306/chatmemory")


def main(version: str) -> None:
    if version != chatmemory.__version__:
        sys.exit(f"The checkout has the version {chatmemory.__version__}, not {version}.")
    target = HERE / version
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    with tempfile.TemporaryDirectory() as place:
        _, wheel = build(Path(place))
        shutil.copy(wheel, target)
        released = Path(place, "released")
        ZipFile(wheel).extractall(released)
        # Only these files of the checkout can be imported, and no other code of the app.
        shutil.copytree(HERE, released / "tests/upgrades", ignore=shutil.ignore_patterns("[0-9]*"))
        facts = {}
        for vendor, dump in DUMPS.items():
            facts[vendor] = dump(target, released)
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (target / "facts.json").write_text(text + "\n")
    for file in sorted(target.iterdir()):
        sys.stdout.write(f"{file.stat().st_size:>9,} {file.name}\n")


def _fill(released: Path, database: Mapping[str, object]) -> dict[str, Any]:
    """Fill a database by the released code; return the facts about it."""
    output = _output(
        sys.executable,
        "-m",
        "tests.upgrades.fill",
        cwd=released,
        env={**os.environ, "UPGRADE_DATABASE": json.dumps(database), "PYTHONPATH": ""},
    )
    facts: dict[str, Any] = json.loads(output)
    if not facts.pop("code").startswith(str(released)):
        raise RuntimeError("This is not the code of the wheel.")
    return facts


def _dump_sqlite(target: Path, released: Path) -> dict[str, Any]:
    file = released / "filled.sqlite3"
    database = environment.database(f"sqlite:///{file}", released)
    database["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}  # one file: no write-ahead log
    facts = _fill(released, database)
    _store(target / FILES["sqlite"], file.read_bytes())
    return facts


def _dump_postgresql(target: Path, released: Path) -> dict[str, Any]:
    url = urlsplit(POSTGRESQL)
    server, own = (url._replace(path=f"/{name}").geturl() for name in ("postgres", NAME))
    drop = f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)"
    _output("psql", "-q", server, "-c", drop, "-c", f"CREATE DATABASE {NAME}")
    try:
        facts = _fill(released, environment.database(own, released))
        dump = _output("pg_dump", "--inserts", "--no-owner", "--no-privileges", own)
    finally:
        _output("psql", "-q", server, "-c", drop)
    # Commands of psql, which have a random argument
    lines = [line for line in dump.splitlines() if not line.startswith(("\\restrict", "\\unrestr"))]
    _store(target / FILES["postgresql"], "\n".join(lines).encode())
    return facts


def _dump_mariadb(target: Path, released: Path) -> dict[str, Any]:
    url = urlsplit(MARIADB)
    place = ["-h", url.hostname or "", "-P", str(url.port or 3306), "-u", url.username or ""]
    place += [f"-p{url.password}"] if url.password else []
    drop = f"DROP DATABASE IF EXISTS {NAME}"
    create = f"CREATE DATABASE {NAME} CHARACTER SET utf8mb4"
    _output("mariadb", *place, "-e", f"{drop}; {create}")
    try:
        facts = _fill(
            released, environment.database(url._replace(path=f"/{NAME}").geturl(), released)
        )
        options = ["--skip-comments", "--default-character-set=utf8mb4", "--skip-add-locks"]
        dump = _output("mariadb-dump", *place, *options, NAME)
    finally:
        _output("mariadb", *place, "-e", drop)
    _store(target / FILES["mysql"], dump.encode())
    return facts


DUMPS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "sqlite": _dump_sqlite,
    "postgresql": _dump_postgresql,
    "mysql": _dump_mariadb,
}


def _store(file: Path, content: bytes) -> None:
    file.write_bytes(gzip.compress(content, mtime=0))


def _output(*command: str, **options: Any) -> str:
    options |= {"check": True, "stdout": subprocess.PIPE}
    done: subprocess.CompletedProcess[bytes]
    done = subprocess.run(command, **options)  # noqa: S603  # our own
    return done.stdout.decode()


if __name__ == "__main__":
    main(sys.argv[1])
