"""Servers that can be killed, on a database of their own."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings
from django.db import connection

HOST = "127.0.0.1"


class Servers:
    """Processes that serve the project, each at a port that it keeps when it is started again."""

    def __init__(self, number: int, env: Mapping[str, str], log: Path) -> None:
        self._listeners = [socket.create_server((HOST, 0)) for _ in range(number)]
        self._env = env
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []

    def __len__(self) -> int:
        return len(self._listeners)

    def address(self, number: int) -> str:
        """Host and port of a server; numbers beyond the last begin again at the first."""
        _, port = self._listeners[number % len(self)].getsockname()
        return f"{HOST}:{port}"

    def start(self) -> None:
        """Begin to serve. Who connects before a server is ready waits for it."""
        with self._log.open("ab") as log:
            for listener in self._listeners:
                fd = listener.fileno()
                self._processes.append(
                    subprocess.Popen(  # noqa: S603  # our own command line
                        [
                            *(sys.executable, "-m", "uvicorn", "project.asgi:application"),
                            *("--fd", str(fd), "--lifespan", "off", "--log-level", "warning"),
                        ],
                        env={**os.environ, **self._env},
                        cwd=settings.BASE_DIR,
                        pass_fds=[fd],
                        stdout=log,
                        stderr=log,
                    )
                )

    def kill(self) -> None:
        """End all at once by SIGKILL, which no process hears of."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def check(self) -> None:
        """Raise RuntimeError with the end of the log if a server has ended by itself."""
        if any(process.poll() is not None for process in self._processes):
            raise RuntimeError(f"A server has ended:\n{self._log.read_text()[-2_000:]}")

    def close(self) -> None:
        """End everything."""
        self.kill()
        for listener in self._listeners:
            listener.close()


@contextmanager
def own_database(folder: Path, prefix: str = "chatmemory_recall") -> Iterator[str]:
    """Use an empty database, made for this and dropped at the end; yields its URL.

    It stands where DATABASE_URL points to, and its name begins with `prefix`; or it is a SQLite
    file in `folder`.
    """
    before = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        name = str(folder / "db.sqlite3")
        url = f"sqlite:///{name}"
    else:
        name = f"{prefix}_{secrets.token_hex(4)}"
        url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    connection.settings_dict["TEST"]["NAME"] = name
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        yield url
    finally:
        connection.creation.destroy_test_db(before, verbosity=0)
