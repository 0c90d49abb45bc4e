"""Writes the files in tests/database/statements from the statements that the services send.

Their test runs on SQLite, which needs no service, and on the databases of DATABASE_URL,
CI_POSTGRESQL_URL and CI_MARIADB_URL. Without these, the files of PostgreSQL and MariaDB stay.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TEST = "tests/database/test_statement_files.py"
URLS = ("DATABASE_URL", "CI_POSTGRESQL_URL", "CI_MARIADB_URL")


def write(url: str) -> None:
    """Write the files of one database."""
    environment = {**os.environ, "DATABASE_URL": url, "CHATMEMORY_WRITE_STATEMENTS": "1"}
    command = [sys.executable, "-m", "pytest", "--quiet", "-m", "database", "-k", "sent", TEST]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)  # noqa: S603  # our own test


if __name__ == "__main__":
    urls = dict.fromkeys(["", *(os.environ.get(name, "") for name in URLS)])
    for url in urls:
        write(url)
    schemes = {url.partition(":")[0] for url in urls}
    for scheme, name in (("postgres", "PostgreSQL"), ("mysql", "MariaDB")):
        if scheme not in schemes:
            sys.stderr.write(f"No URL of {name} is set, so its files stay as they are.\n")
