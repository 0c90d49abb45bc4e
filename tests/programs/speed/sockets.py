"""Servers, and clients of their websockets."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection
from websockets.asyncio.client import ClientConnection, connect

from chatmemory import services
from chatmemory.models import Session
from tests.programs.speed.cases import BenchError
from tests.programs.speed.meter import is_backend
from tests.programs.speed.plain import PLAIN_SCOPE
from tests.programs.speed.responder import reply_to

START_SECONDS = 60
ANSWER_SECONDS = 60
"""Seconds after which a server counts as failed."""

IDLE_SECONDS = 3_600
"""How long a client may answer no ping, since it does nothing while other cases are measured."""

Frame = dict[str, Any]
Observer = Callable[[str], None]
"""Is called with the name of each step of a turn, at its end."""


class Server:
    """Uvicorn with the applications of `served`, on a free port of this machine."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        given = json.loads(os.environ["CHATMEMORY_BENCH"])
        self._database = given["server_database"]
        env = {
            **os.environ,
            "CHATMEMORY_BENCH": json.dumps({**given, "database": self._database}),
        }
        command = ["-m", "uvicorn", "--log-level", "warning", "--port", str(self.port)]
        command += ["--ws-ping-interval", str(IDLE_SECONDS)]
        self._process = subprocess.Popen(  # noqa: S603  # our own command line
            [sys.executable, *command, "tests.programs.speed.served:application"],
            env=env,
            stdin=subprocess.DEVNULL,
        )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.05)
        self.close()
        raise BenchError("The server does not start.")

    @property
    def pid(self) -> int:
        return self._process.pid

    def backend_pids(self) -> Sequence[int]:
        """Return the processes of PostgreSQL that work for it, and for its case's other servers."""
        if connection.vendor != "postgresql":
            return ()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = %s",
                [self._database["OPTIONS"]["application_name"]],
            )
            return [pid for (pid,) in cursor.fetchall() if is_backend(pid)]

    def count(self, path: str) -> dict[str, int]:
        """Begin (`on`) or end (`off`) counting; return the counts."""
        url = f"http://127.0.0.1:{self.port}/{path}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=ANSWER_SECONDS) as answer:
            counts: dict[str, int] = json.load(answer)
        return counts

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Talk:
    """A user's websocket to the stock or the plain consumer."""

    route = "stock"

    def __init__(self, server: Server, user: User) -> None:
        self.key = str(uuid.uuid4())
        self.user = user
        self.sent: list[str] = []
        self._server = server
        self._cookie = f"{settings.SESSION_COOKIE_NAME}={_login_key(user)}"
        self._socket: ClientConnection | None = None

    def prepare(self) -> None:
        """Create what the server needs."""

    async def open(self) -> Self:
        """Connect, and wait until the server has sent the newest messages."""
        host = f"127.0.0.1:{self._server.port}"
        self._socket = await connect(
            f"ws://{host}/ws/{self.route}/{self.key}/",
            origin=f"http://{host}",  # type: ignore[arg-type]  # Origin is a str
            additional_headers={"Cookie": self._cookie},
            ping_interval=None,
            proxy=None,
        )
        await self.hello()
        return self

    async def hello(self) -> None:
        await self.put(type="hello")
        await self.until("synced")

    async def turn(self, text: str, observe: Observer = lambda _: None) -> None:
        """Send a message and wait for the end of its turn. Raises BenchError on a wrong reply."""
        self.sent.append(text)
        await self.put(type="send", text=text)
        async with asyncio.timeout(ANSWER_SECONDS):
            await self.until("delta")
            observe("first piece")
            self.check(await self.until("done"))
            observe("end")

    def check(self, frame: Frame) -> None:
        if frame["text"] != reply_to(self.sent[-1]):
            raise BenchError(f"The reply to {self.sent[-1].split(' ')[0]} is wrong.")

    async def put(self, **frame: object) -> None:
        assert self._socket is not None  # it is open
        await self._socket.send(json.dumps(frame))

    async def until(self, kind: str, **fields: object) -> Frame:
        """Return the next frame of this type with these fields."""
        while True:
            frame = await self.get()
            if frame["type"] == kind and fields.items() <= frame.items():
                return frame

    async def get(self) -> Frame:
        """Return the next frame. Raises BenchError at an error."""
        assert self._socket is not None  # it is open
        while True:
            frame: Frame = json.loads(await self._socket.recv())
            if frame["type"] == "ping":
                await self.put(type="pong", n=frame["n"])
            elif frame["type"] in ("error", "bye"):
                raise BenchError(f"The server sent {frame}.")
            else:
                return frame

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()


class PlainTalk(Talk):
    """A websocket to the plain consumer."""

    route = "plain"

    def prepare(self) -> None:
        Session.objects.create(scope=PLAIN_SCOPE, key=self.key)


class OurTalk(Talk):
    """A websocket to our consumer."""

    route = "chat"

    def prepare(self) -> None:
        services.open_session(session_key=self.key, by=services.Actor.user(self.user))

    async def hello(self) -> None:
        await self.put(type="hello", v=1)
        await self.until("synced")

    async def turn(self, text: str, observe: Observer = lambda _: None) -> None:
        self.sent.append(text)
        await self.put(type="send", id=len(self.sent), client_id=uuid.uuid4().hex, text=text)
        awaited = {"admission", "first piece", "reply stored", "end"}
        # Not one after another: the paths of these frames are different.
        async with asyncio.timeout(ANSWER_SECONDS):
            while awaited - {"first piece"}:  # a fast reply has no pieces
                frame = await self.get()
                step = self._step_of(frame)
                if step in awaited:
                    awaited.remove(step)
                    observe(step)
                if step == "reply stored":
                    self.check(frame)

    def _step_of(self, frame: Frame) -> str:
        """Return the step that a frame ends, or an empty text."""
        match frame:
            case {"type": "ok"}:
                return "admission"
            case {"type": "snapshot" | "delta", "text": str(text)} if text:
                return "first piece"
            case {"type": "message", "role": "assistant"}:
                return "reply stored"
            case {"type": "session", "running": None, "last_seq": last_seq}:
                return "end" if last_seq == 2 * len(self.sent) else ""
        return ""


def make_users(names: Sequence[str]) -> list[User]:
    """Create users without a password: hashing one takes longer than a turn."""
    users = [User(username=name) for name in names]
    for user in users:
        user.set_unusable_password()
        user.save()
    return users


def _login_key(user: User) -> str:
    """Log a user in; return the key of the Django session."""
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.create()
    return str(store.session_key)
