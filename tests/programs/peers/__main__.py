"""Create the environments, run the contract in them, and print the scoreboard.

`python -m tests.programs.peers [--write] [NAME…]`: a NAME is that of a requirements file, or
`ours`, `django-saver`, `django-session` or `careless`; by default all run. `var/peers` keeps the
results of earlier runs. `--write` writes `docs/reasons/peers.md`.
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

from tests.programs.peers.base import POSTGRESQL, REDIS
from tests.programs.peers.results import SIZES
from tests.programs.peers.scoreboard import cells_of, group, not_offered, rows, summary

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
PLACE = ROOT / "var" / "peers"
PAGE = ROOT / "docs/reasons/peers.md"
MARIADB = os.environ.get("PEERS_MARIADB", "mysql://root@127.0.0.1:3306/chatmemory_peers")
MODULES = sorted(
    path.stem.removeprefix("requirements-") for path in HERE.glob("requirements-*.txt")
)
NEEDS = {
    "langchain-community": (POSTGRESQL, REDIS),
    "langchain-postgres": (POSTGRESQL,),
    "langgraph": (POSTGRESQL,),
    "openai-agents": (POSTGRESQL,),
}
DATABASES = {
    "SQLite": "",
    "PostgreSQL": urlsplit(POSTGRESQL)._replace(scheme="postgres").geturl(),
    "MariaDB": MARIADB,
}
OURS = {name: f"ours, {name}" for name in DATABASES}
"""The columns of our memory, by database."""
IN_DJANGO = {"django-saver": "DjangoSaver", "django-session": "DjangoSession"}
"""The columns of what else is ours, by module. One shows the worst result of all databases."""
GROUPS = {
    "Ours": list(OURS.values()),
    "In the process, or hand-written": [
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
    ],
    "LangChain's memories on its SQL history": [
        "ConversationTokenBufferMemory",
        "ConversationSummaryMemory",
    ],
    "Savers of LangGraph": [
        "LangGraph PostgresSaver",
        "LangGraph AsyncPostgresSaver",
        "LangGraph SqliteSaver",
        "LangGraph InMemorySaver",
        "DjangoSaver",
    ],
    "Sessions of OpenAI's agents SDK": [
        "OpenAI SQLiteSession",
        "OpenAI SQLAlchemySession",
        "DjangoSession",
    ],
    "Others": ["django-ai-assistant"],
}
ROWS = [*GROUPS["Savers of LangGraph"], *GROUPS["Sessions of OpenAI's agents SDK"]]
"""The savers and sessions, which have a table with a row for each."""

INTRO = """# The scoreboard

[Our contract](contract.md#the-promise-of-each-test), run on the memories of other packages and on
ours. Each peer is used as its documentation describes, in an environment of its own.

*pass*: the promise was kept. **Bold**: it was broken, with counts of messages. A ≈ behind it: the
counts depend on chance, such as the order of processes, and differ from run to run; such a test may
also pass by chance. *Not offered*: the store does not claim this, so it cannot fail.

`DjangoSaver` is [our saver for LangGraph](../howto/langgraph.md), with its worst result of SQLite,
PostgreSQL and MariaDB. It refuses a run that overlaps another, and the test runs it again.
`DjangoSession` is [our session for the agents SDK](../howto/agents-sdk.md), with its worst result
of these databases; an unreadable message is no item, so it is *lost* for the agent, though not for
operators.

`make peers` creates the environments and prints this page; `make peers ARGS=--write` writes it. It
needs PostgreSQL, MariaDB and Redis on this machine (`PEERS_POSTGRESQL`, `PEERS_MARIADB` and
`PEERS_REDIS` are their addresses), the package index, and an hour.
"""


def environment(name: str) -> str | None:
    """Return the Python of an environment, created again if its requirements have changed.

    None if the installation fails.
    """
    pins = HERE / f"requirements-{name}.txt"
    wanted = pins.read_text()
    place = PLACE / name
    made = place / "made"
    python = str(place / "bin" / "python")
    if made.exists() and made.read_text() == wanted:
        return python
    log(f"Installing {name}.")
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
    """Run pytest, and keep the results under this name."""
    log(f"Running {name}.")
    results = PLACE / "results" / f"{name}.json"
    results.unlink(missing_ok=True)
    command = [
        python,
        "-m",
        "pytest",
        "-p",
        "tests.programs.peers.results",
        "-q",
        "--tb=short",
        *arguments,
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PEERS_RESULTS": str(results), **more}
    with (PLACE / "results" / f"{name}.txt").open("w") as output:
        subprocess.run(command, cwd=ROOT, env=env, stdout=output, stderr=output, check=False)  # noqa: S603  # our own command line


def run_peer(name: str, python: str) -> None:
    module = f"tests/programs/peers/{name.replace('-', '_')}.py"
    options = ["-c", "tests/programs/peers/pytest.ini", "--rootdir", ".", "--noconftest"]
    run(name, python, [*options, module])


def run_in_django(name: str) -> None:
    """Run the tests of our memory, or of another module of ours, on each database."""
    module = f"tests/programs/peers/{name.replace('-', '_')}.py"
    options = ["-c", "pyproject.toml", "--rootdir", ".", "-m", "database", "-p", "no:randomly"]
    file = "tests/testing/test_contract.py" if name == "ours" else module
    for database, url in DATABASES.items():
        run(
            f"{name}-{database}",
            sys.executable,
            [*options, "--create-db", file],
            DATABASE_URL=url,
            PEERS_COLUMN=IN_DJANGO.get(name, OURS[database]),
        )


def is_listening(url: str) -> bool:
    """Whether a process listens at this address."""
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=2):
            return True
    except OSError:
        return False


def make_database() -> None:
    """Create the PostgreSQL database that the peers share."""
    address = urlsplit(POSTGRESQL)
    name = address.path.removeprefix("/")
    with psycopg.connect(
        address._replace(path="/postgres").geturl(), autocommit=True
    ) as connection:
        if not connection.execute(
            "SELECT 1 FROM pg_database WHERE datname = %s", [name]
        ).fetchone():
            connection.execute(
                psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name))
            )


def versions() -> str:
    """List the versions of this run."""
    lines = [f"- Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"]
    if is_listening(POSTGRESQL):
        with psycopg.connect(POSTGRESQL) as connection:
            lines.append(f"- PostgreSQL {connection.info.parameter_status('server_version')}")
    if is_listening(MARIADB):
        address = urlsplit(MARIADB)
        account = {"user": address.username or "", "password": address.password or ""}
        with closing(
            MySQLdb.connect(host=address.hostname or "", port=address.port or 3306, **account)
        ) as server:
            lines.append(f"- MariaDB {server.get_server_info()}")
    if is_listening(REDIS):
        with redis.Redis.from_url(REDIS) as client:
            info: Any = client.info("server")
            lines.append(f"- Redis {info['redis_version']}")
    texts = [(HERE / f"requirements-{name}.txt").read_text() for name in MODULES]
    pins = sorted({*" ".join(texts).split()}, key=str.lower)
    lines.append(f"- {', '.join(pin.replace('==', ' ') for pin in pins)}")
    return "\n".join(lines) + "\n"


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the page with the scoreboard."""
    cells = cells_of(results)
    sizes = ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in SIZES.items())
    parts = [
        INTRO,
        "## The known failures\n",
        summary(cells, list(OURS.values())),
        "## Savers and sessions\n",
        rows(cells, ROWS),
        *(
            part
            for name, columns in GROUPS.items()
            for part in (f"## {name}\n", group(cells, columns))
        ),
        "## Not offered\n",
        not_offered(cells, GROUPS),
        "## Versions\n",
        f"Sizes: {sizes}.\n\n{versions()}",
    ]
    return "\n".join(parts)


def log(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true", help="write docs/reasons/peers.md")
    options = parser.parse_args()
    (PLACE / "results").mkdir(parents=True, exist_ok=True)
    if is_listening(POSTGRESQL):
        make_database()
    names = options.names or ["careless", *MODULES, *IN_DJANGO, "ours"]
    for name in names:
        if name == "ours" or name in IN_DJANGO:
            run_in_django(name)
        elif name == "careless":
            run_peer(name, sys.executable)
        elif missing := [url for url in NEEDS.get(name, ()) if not is_listening(url)]:
            log(f"{name} is not run: no server at {', '.join(missing)}.")
        elif python := environment(name):
            run_peer(name, python)
        else:
            log(f"{name} is not run: its environment cannot be created.")
    files = sorted((PLACE / "results").glob("*.json"))
    text = page([result for file in files for result in json.loads(file.read_text())])
    sys.stdout.write(text)
    if options.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
