"""The base of the adapters: shared workers, and a proxy that can cut a server off."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import pytest

from chatmemory.testing.contract import Address, MemoryContract, Store, StoreFactory
from chatmemory.testing.workers import WorkerPool

POSTGRESQL = os.environ.get(
    "PEERS_POSTGRESQL", "postgresql://postgres@127.0.0.1:5432/chatmemory_peers"
)
REDIS = os.environ.get("PEERS_REDIS", "redis://127.0.0.1:6379/15")

POOL = WorkerPool()


class Peer(MemoryContract):
    """The contract for a peer."""

    column: ClassVar[str]
    """The peer's column in the scoreboard."""

    @pytest.fixture
    def workers(self) -> WorkerPool:
        return POOL


class FilePeer(Peer):
    """The contract for a peer whose memory is a file."""

    @pytest.fixture
    def arguments(self, tmp_path: Any) -> dict[str, Any]:
        return {"path": str(tmp_path / "memory")}


def name_of(at: Address) -> str:
    """Return the session name for stores without users, as their documentation recommends."""
    return f"{at.user}:{at.session}"


class Proxy:
    """A TCP proxy that can cut its connections."""

    def __init__(self, host: str, port: int) -> None:
        self.held: bytes = b""
        """The proxy stops to forward a connection at data that contain these bytes."""
        self.is_holding = threading.Event()
        self._target = (host, port)
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._serve()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Close all connections, and refuse new ones within the block."""
        self.close()
        try:
            yield
        finally:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._serve()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._open.clear()

    def _serve(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(one)
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if self.held and self.held in data:
                    self.is_holding.set()
                    return
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._open.discard(one)


__all__ = [
    "POOL",
    "POSTGRESQL",
    "REDIS",
    "Address",
    "FilePeer",
    "Peer",
    "Proxy",
    "Store",
    "StoreFactory",
    "name_of",
]
