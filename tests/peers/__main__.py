"""`python -m tests.peers [--write] [NAME…]`: make the environments, run them, print the page.

A NAME is that of a requirements file, or `ours`, or `careless`; without one all are run. What was
run before is kept in `var/peers`. `--write` writes `docs/peers.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import MySQLdb
import psycopg
import redis

from tests.peers.base import POSTGRESQL, REDIS
from tests.peers.results import SIZES
from tests.peers.scoreboard import cells_of, summary, table

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
PLACE = ROOT / "var" / "peers"
PAGE = ROOT / "docs" / "peers.md"
MARIADB = os.environ.get("PEERS_MARIADB", "mysql://root@127.0.0.1:3306/chatmemory_peers")
MODULES = sorted(
    path.stem.removeprefix("requirements-") for path in HERE.glob("requirements-*.txt")
)
NEEDS = {
    "langchain-community": (POSTGRESQL, REDIS),
    "langchain-redis": (REDIS,),
    "langchain-postgres": (POSTGRESQL,),
    "langgraph": (POSTGRESQL,),
    "openai-agents": (POSTGRESQL,),
}
OURS = {
    "ours, SQLite": "",
    "ours, PostgreSQL": urlsplit(POSTGRESQL)._replace(scheme="postgres").geturl(),
    "ours, MariaDB": MARIADB,
}
GROUPS = {
    "Ours": list(OURS),
    "In the process, or written by hand": [
        "shared ConversationBufferMemory",
        "InMemoryChatMessageHistory",
        "one list for all",
        "read, changed, written back",
    ],
    "LangChain's histories": [
        "RedisChatMessageHistory",
        "SQLChatMessageHistory",
        "FileChatMessageHistory",
        "PostgresChatMessageHistory",
        "langchain-redis",
    ],
    "LangChain's memories on its SQL history": [
        "ConversationTokenBufferMemory",
        "ConversationSummaryMemory",
    ],
    "LangGraph's savers": [
        "LangGraph PostgresSaver",
        "LangGraph SqliteSaver",
        "LangGraph InMemorySaver",
    ],
    "Others": ["OpenAI SQLiteSession", "OpenAI SQLAlchemySession", "django-ai-assistant"],
}

INTRO = """# The scoreboard

Our contract ([how it works](contract.md)), run on the memories of others and on ours. Each peer is
used as its documentation says, in an environment of its own, with the versions below.

*pass*: the promise was kept. **Bold**: it wasn't, and how much was lost, doubled, split and so on.
*Not offered*: the store doesn't claim to do that, and so can't fail at it. A count of what depends
on chance, such as who comes first of eight processes, differs from run to run.

`make peers` makes the environments and prints this page, `make peers ARGS=--write` writes it. It
needs PostgreSQL, MariaDB and Redis on this machine (`PEERS_POSTGRESQL`, `PEERS_MARIADB` and
`PEERS_REDIS` say where), the package index, and half an hour.
"""


def environment(name: str) -> str | None:
    """The Python of the environment of this name, made if its requirements have changed."""
    pins = HERE / f"requirements-{name}.txt"
    wanted = pins.read_text()
    place = PLACE / name
    made = place / "made"
    python = str(place / "bin" / "python")
    if made.exists() and made.read_text() == wanted:
        return python
    say(f"Installing {name}.")
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(place)],
        [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", "-r", str(pins)],
    ]
    for command in commands:
        if subprocess.run(command, check=False).returncode:  # noqa: S603  # our own command line
            return None
    made.write_text(wanted)
    return python


def run(name: str, python: str, arguments: Sequence[str], **more: str) -> None:
    """Run a part of the contract; its results are kept under this name."""
    say(f"Running {name}.")
    results = PLACE / "results" / f"{name}.json"
    results.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-p", "tests.peers.results", "-q", "--tb=short", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PEERS_RESULTS": str(results), **more}
    with (PLACE / "results" / f"{name}.txt").open("w") as log:
        subprocess.run(command, cwd=ROOT, env=env, stdout=log, stderr=log, check=False)  # noqa: S603  # our own command line


def run_peer(name: str, python: str) -> None:
    module = f"tests/peers/{name.replace('-', '_')}.py"
    run(name, python, ["-c", "tests/peers/pytest.ini", "--rootdir", ".", "--noconftest", module])


def run_ours() -> None:
    arguments = ["tests/test_contract.py", "-m", "database", "-p", "no:randomly", "--create-db"]
    for column, url in OURS.items():
        run(
            column.replace(", ", "-"),
            sys.executable,
            arguments,
            DATABASE_URL=url,
            PEERS_COLUMN=column,
        )


def answers(url: str) -> bool:
    """Whether somebody listens there."""
    there = urlsplit(url)
    try:
        with socket.create_connection((there.hostname or "", there.port or 0), timeout=2):
            return True
    except OSError:
        return False


def make_database() -> None:
    """The database in PostgreSQL that the peers share."""
    there = urlsplit(POSTGRESQL)
    name = there.path.removeprefix("/")
    with psycopg.connect(there._replace(path="/postgres").geturl(), autocommit=True) as connection:
        if not connection.execute(
            "SELECT 1 FROM pg_database WHERE datname = %s", [name]
        ).fetchone():
            connection.execute(
                psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name))
            )


def versions() -> str:
    """What this was run with."""
    lines = [f"- Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"]
    if answers(POSTGRESQL):
        with psycopg.connect(POSTGRESQL) as connection:
            lines.append(f"- PostgreSQL {connection.info.parameter_status('server_version')}")
    if answers(MARIADB):
        there = urlsplit(MARIADB)
        account = {"user": there.username or "", "password": there.password or ""}
        with closing(
            MySQLdb.connect(host=there.hostname or "", port=there.port or 3306, **account)
        ) as server:
            lines.append(f"- MariaDB {server.get_server_info()}")
    if answers(REDIS):
        with redis.Redis.from_url(REDIS) as client:
            info: Any = client.info("server")
            lines.append(f"- Redis {info['redis_version']}")
    for name in MODULES:
        pinned = (HERE / f"requirements-{name}.txt").read_text().split()
        lines.append(f"- {name}: {', '.join(pin.replace('==', ' ') for pin in pinned)}")
    return "\n".join(lines) + "\n"


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The scoreboard with what is said about it."""
    cells = cells_of(results)
    sizes = ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in SIZES.items())
    parts = [
        INTRO,
        "## The known failures\n",
        summary(cells, list(OURS)),
        *(
            part
            for name, columns in GROUPS.items()
            for part in (f"## {name}\n", table(cells, columns))
        ),
        "## With what\n",
        f"Sizes: {sizes}.\n\n{versions()}",
    ]
    return "\n".join(parts)


def say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true", help="write docs/peers.md")
    options = parser.parse_args()
    (PLACE / "results").mkdir(parents=True, exist_ok=True)
    if answers(POSTGRESQL):
        make_database()
    names = options.names or ["careless", *MODULES, "ours"]
    for name in names:
        if name == "ours":
            run_ours()
        elif name == "careless":
            run_peer(name, sys.executable)
        elif missing := [url for url in NEEDS.get(name, ()) if not answers(url)]:
            say(f"{name} is not run: nothing answers at {', '.join(missing)}.")
        elif python := environment(name):
            run_peer(name, python)
        else:
            say(f"{name} is not run: its environment can't be made.")
    found = [json.loads(path.read_text()) for path in sorted((PLACE / "results").glob("*.json"))]
    made = page([result for one in found for result in one])
    sys.stdout.write(made)
    if options.write:
        PAGE.write_text(made)


if __name__ == "__main__":
    main()
