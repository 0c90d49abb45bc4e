"""Server processes that can be killed, and a temporary database for them."""

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
    """Processes that serve the project; each keeps its port across restarts."""

    def __init__(self, number: int, env: Mapping[str, str], log: Path) -> None:
        self._listeners = [socket.create_server((HOST, 0)) for _ in range(number)]
        self._env = env
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []

    def __len__(self) -> int:
        return len(self._listeners)

    def address(self, number: int) -> str:
        """Return host and port of a server; the number wraps around."""
        _, port = self._listeners[number % len(self)].getsockname()
        return f"{HOST}:{port}"

    def start(self) -> None:
        """Start the processes; a connection made before a server is ready waits for it."""
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
        """Send SIGKILL to all processes and wait until they have ended."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def check(self) -> None:
        """Raise RuntimeError with the end of the log if a server has exited."""
        if any(process.poll() is not None for process in self._processes):
            raise RuntimeError(f"A server exited:\n{self._log.read_text()[-2_000:]}")

    def close(self) -> None:
        """Kill the processes and close their ports."""
        self.kill()
        for listener in self._listeners:
            listener.close()


@contextmanager
def temporary_database(folder: Path, prefix: str = "chatmemory_recall") -> Iterator[str]:
    """Create an empty database and drop it at the end; yields its URL.

    It is on the server of DATABASE_URL, with a name that starts with `prefix`; without that
    variable it is a SQLite file in `folder`.
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
