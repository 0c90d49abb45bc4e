"""A PostgreSQL primary with a synchronous standby, which can be killed and promoted."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

PROGRAMS = Path("/usr/lib/postgresql")
"""Where Debian has the programs that are not in the search path."""
ACCOUNT = "postgres"
"""PostgreSQL refuses to run as root, and then runs as this user."""
PORTS = range(21_000, 32_000)
"""Below those of clients (net.ipv4.ip_local_port_range), which could get that of a dead node."""
MAX_SECONDS = 60.0
"""Time after which a new standby must be synchronous."""
FOLDER = "TORTURE_STANDBYS"
"""The environment variable with the folder of the pair."""


def find_programs() -> Path | None:
    """Return the folder of the newest server's programs; None if there is none."""
    if initdb := shutil.which("initdb"):
        return Path(initdb).resolve().parent
    versions = sorted(PROGRAMS.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return versions[-1].parent if versions else None


class Node:
    """One server of the pair."""

    def __init__(self, folder: Path, name: str) -> None:
        self.data = folder / name
        self._port_file = folder / f"{name}.port"

    @property
    def port(self) -> int:
        return int(self._port_file.read_text())

    @port.setter
    def port(self, port: int) -> None:
        self._port_file.write_text(str(port))

    @property
    def is_standby(self) -> bool:
        return (self.data / "standby.signal").exists()

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Execute a statement on this server; return its rows."""
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user=ACCOUNT, dbname=ACCOUNT, autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """Send SIGKILL to all its processes, as a crash of the machine does."""
        first = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(first, signal.SIGSTOP)  # it starts no process that would keep the port
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in (first, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


class StandbyPair:
    """Two nodes in a folder; other processes find them there, with the same roles."""

    def __init__(self, folder: Path) -> None:
        programs = find_programs()
        assert programs is not None, "the programs of the PostgreSQL server are not installed"
        self._programs = programs
        self._folder = folder
        self._nodes = [Node(folder, name) for name in ("a", "b")]

    @property
    def primary(self) -> Node:
        [node] = [node for node in self._nodes if not node.is_standby and node.data.exists()]
        return node

    @property
    def standby(self) -> Node:
        [node] = [node for node in self._nodes if node.is_standby]
        return node

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which libpq finds the node that accepts writes."""
        return {
            "DATABASE_URL": f"postgres://{ACCOUNT}@/{ACCOUNT}",
            "PGHOST": ",".join("127.0.0.1" for _ in self._nodes),
            "PGPORT": ",".join(str(node.port) for node in self._nodes),
            "PGTARGETSESSIONATTRS": "read-write",
            "PGCONNECT_TIMEOUT": "2",
            FOLDER: str(self._folder),
        }

    def create(self) -> None:
        """Create and start both nodes."""
        if os.geteuid() == 0:
            self._folder.chmod(0o755)
            shutil.chown(self._folder, ACCOUNT)
        free = filter(_is_free, PORTS)
        for node in self._nodes:
            node.port = next(free)
        first, second = self._nodes
        self._run("initdb", "-D", first.data, "-U", ACCOUNT, "-A", "trust", "-N")
        with (first.data / "postgresql.conf").open("a") as settings:
            settings.write("listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\n")
        self._start(first)
        self._add_standby(second)

    def promote(self) -> None:
        """Make the standby the primary; return when it accepts writes. The dead node is removed."""
        dead, standby = self.primary, self.standby
        self._run("pg_ctl", "promote", "-D", standby.data, "-w")
        shutil.rmtree(dead.data)

    def add_standby(self) -> None:
        """Create the missing node again, as a synchronous standby."""
        [missing] = [node for node in self._nodes if not node.data.exists()]
        self._add_standby(missing)

    def stop(self) -> None:
        """End both nodes."""
        for node in self._nodes:
            if (node.data / "postmaster.pid").exists():
                with suppress(subprocess.CalledProcessError):
                    self._run("pg_ctl", "stop", "-D", node.data, "-m", "immediate")

    def _add_standby(self, node: Node) -> None:
        primary = self.primary
        source = f"host=127.0.0.1 port={primary.port} user={ACCOUNT}"
        self._run("pg_basebackup", "-D", node.data, "-d", source, "-R", "-c", "fast")
        # A promoted standby has no standby of its own, for which its commits would wait.
        with (node.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")
        self._start(node)
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        until = time.monotonic() + MAX_SECONDS
        while primary.execute("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
            assert time.monotonic() < until, "the standby is not synchronous"
            time.sleep(0.05)

    def _start(self, node: Node) -> None:
        log = node.data.with_suffix(".log")
        self._run("pg_ctl", "start", "-D", node.data, "-l", log, "-o", f"-p {node.port}", "-w")

    def _run(self, program: str, *arguments: str | Path) -> None:
        account = ["runuser", "-u", ACCOUNT, "--"] if os.geteuid() == 0 else []
        # A file, since the server keeps the stream of pg_ctl open.
        with (self._folder / "programs.log").open("ab") as log:
            subprocess.run(  # noqa: S603  # our own command line
                [*account, str(self._programs / program), *map(str, arguments)],
                check=True,
                cwd=self._folder,
                # The programs would read the ports of both nodes as that of one.
                env={name: value for name, value in os.environ.items() if name[:2] != "PG"},
                stdout=log,
                stderr=log,
            )


@contextmanager
def standby_pair(folder: Path) -> Iterator[Mapping[str, str]]:
    """Run a pair; yields the environment in which Django uses it."""
    pair = StandbyPair(folder)
    try:
        pair.create()
        yield pair.environment
    finally:
        pair.stop()
