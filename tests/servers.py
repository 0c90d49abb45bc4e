"""Clients of the websocket, in this process and over a network, and servers that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pytest
import uvicorn
import websockets
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from chatmemory.live.hub import hub
from chatmemory.live.keeper import END_THREAD
from chatmemory.live.runner import runner
from chatmemory.services import Actor
from tests import frames, responders_for_tests
from tests.conftest import database_environment
from tests.factories import make_session, make_user

DEADLINE = 20
"""Seconds after which a test stops waiting and fails."""

SERVERS = {
    "uvicorn": "uvicorn --log-level warning --ws-max-size 1048576 --port {port} {application}",
    "daphne": "daphne -v 0 -p {port} {application}",
    "gunicorn": "gunicorn --log-level warning --worker-class uvicorn_worker.UvicornWorker "
    "--bind 127.0.0.1:{port} {application}",
    "hypercorn": "hypercorn --bind 127.0.0.1:{port} {application}",
}
"""Modules to run, with their arguments."""

COMMANDS = {
    **SERVERS,
    "runserver": "django runserver --noreload {port}",
    "gevent": "gunicorn --log-level warning --worker-class gevent --bind 127.0.0.1:{port} "
    "{application}",
}
"""Also those that no test runs on `on_each_server`."""

on_daphne_and_uvicorn = pytest.mark.parametrize("program", ["daphne", "uvicorn"])
"""Run a test on the two servers that this project recommends."""


def _server_or_skip(program: str) -> Any:
    module = "uvicorn_worker" if program == "gunicorn" else program
    is_missing = find_spec(module) is None
    skip = pytest.mark.skipif(is_missing, reason=f"{module} is not installed")
    return pytest.param(program, marks=skip)


on_each_server = pytest.mark.parametrize("program", [_server_or_skip(name) for name in SERVERS])
"""Run a test on all `SERVERS`; skip those that are not installed."""

Frame = dict[str, Any]

SHAPE = {"bad_shape", "bad_field", "unknown_field", "unknown_type", "role_forbidden"}
"""Error codes for frames that violate the schema."""


class Closed(Exception):
    """The socket was closed by the server."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Person:
    """A signed-in user."""

    user: User
    cookie: str

    @property
    def talk(self) -> dict[str, Any]:
        """The arguments with which services find this user's session `talk`."""
        return {"session_key": "talk", "by": Actor.user(self.user)}


def sign_in(user: User | None = None) -> Person:
    """Sign a user in, by default a new one."""
    user = user or make_user()
    browser = Client()
    browser.force_login(user)
    return Person(user, browser.cookies[settings.SESSION_COOKIE_NAME].value)


class Chat:
    """The client's side of the protocol, over any transport."""

    def __init__(self, person: Person | None, key: str = "talk") -> None:
        self.key = key
        self.cookie = person.cookie if person else ""
        self.confirms = True
        """Whether the client answers pings."""
        self.frames: list[Frame] = []
        """All received frames."""
        self._faults: dict[object, str] = {}
        self._unread: deque[Frame] = deque()

    async def put(self, data: str | bytes) -> None:
        raise NotImplementedError

    async def get(self) -> str:
        raise NotImplementedError

    async def send_frame(self, kind: str, **fields: object) -> None:
        """Send a frame. An invalid one must have an id, and be answered by an error."""
        frame = {"type": kind, **fields}
        fault = frames.fault_of("client", frame)
        if "id" in fields:
            self._faults[fields["id"]] = fault
        else:
            assert not fault, fault
        await self.put(json.dumps(frame))

    async def next(self) -> Frame:
        """Return the next frame, except answered pings. Raises Closed."""
        return self._unread.popleft() if self._unread else await self._receive()

    async def _receive(self) -> Frame:
        while True:
            try:
                frame: Frame = json.loads(await self.get())
            except TimeoutError as error:
                raise TimeoutError(f"no frame follows {self.frames[-5:]}") from error
            self.frames.append(frame)
            self._check(frame)
            if frame["type"] != "ping" or not self.confirms:
                return frame
            await self.send_frame("pong", n=frame["n"])

    def _check(self, frame: Frame) -> None:
        """Fail if the frame is invalid, or accepts a frame that is, or refuses a valid one."""
        frames.check("server", frame)
        fault = self._faults.get(frame.get("id"))
        if frame["type"] == "ok" and fault:
            pytest.fail(f"the server accepted a frame that violates the schema: {fault}")
        if frame.get("code") in SHAPE and fault == "":
            pytest.fail(f"the server refused a frame that the schema allows: {frame}")

    async def until(self, kind: str, **fields: object) -> Frame:
        """Return the next frame of this type with these values; skip the frames before it."""
        while True:
            frame = await self.next()
            if frame["type"] == kind and fields.items() <= frame.items():
                return frame

    async def ask(self, kind: str, **fields: object) -> Frame:
        """Send a frame with an id, and return its answer; `next` returns the frames before it."""
        frame_id = uuid.uuid4().hex
        await self.send_frame(kind, id=frame_id, **fields)
        while True:
            frame = await self._receive()
            if frame.get("id") == frame_id:
                return frame
            self._unread.append(frame)

    async def hello(self, **fields: object) -> str:
        """Send `hello`, and return the cursor of the first `synced`."""
        await self.send_frame("hello", v=1, **fields)
        cursor: str = (await self.until("synced"))["cursor"]
        return cursor

    async def send(self, text: str, client_id: str = "c1", **fields: object) -> Frame:
        """Send a message; return the answer."""
        return await self.ask("send", client_id=client_id, text=text, **fields)

    async def idle(self, last_seq: int) -> Frame:
        """Wait until no turn runs and the session has this many messages; return its frame."""
        return await self.until("session", running=None, last_seq=last_seq)

    async def closed(self) -> tuple[Frame | None, int]:
        """Return the last frame before the server closes the socket, and the close code."""
        last = None
        try:
            while True:
                last = await self.next()
        except Closed as closed:
            return last, closed.code

    def texts(self, kind: str = "message") -> list[str]:
        """Return the texts of the received frames of this type."""
        return [frame["text"] for frame in self.frames if frame["type"] == kind]

    def streamed(self) -> str:
        """Return the text of the last stream."""
        text = ""
        for frame in self.frames:
            match frame["type"]:
                case "snapshot":
                    text = frame["text"]
                case "delta":
                    text += frame.get("text", "")
        return text


class Tab(Chat):
    """A socket in this process, which does the ASGI server's part."""

    def __init__(
        self,
        person: Person | None,
        key: str = "talk",
        *,
        headers: Mapping[str, str | None] | None = None,
        scheme: str = "ws",
        protocols: Sequence[str] = (),
    ) -> None:
        super().__init__(person, key)
        wanted = {"host": "testserver", "origin": "http://testserver", **(headers or {})}
        given = {name: value for name, value in wanted.items() if value is not None}
        if self.cookie:
            given["cookie"] = f"{settings.SESSION_COOKIE_NAME}={self.cookie}"
        self.scope = {
            "type": "websocket",
            "path": f"/ws/chat/{key}/",
            "query_string": b"",
            "scheme": scheme,
            "subprotocols": [*protocols],
            "headers": [(name.encode(), value.encode("latin1")) for name, value in given.items()],
        }
        self.is_accepted = False
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        from project.asgi import application

        self._app = asyncio.ensure_future(
            application(self.scope, self._inbox.get, self._outbox.put)
        )
        await self._inbox.put({"type": "websocket.connect"})
        async with asyncio.timeout(DEADLINE):
            answer = await self._outbox.get()
        self.is_accepted = answer["type"] == "websocket.accept"
        self.protocol = answer.get("subprotocol")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._inbox.put({"type": "websocket.disconnect", "code": 1001})
        async with asyncio.timeout(DEADLINE):
            await self._app

    async def put(self, data: str | bytes) -> None:
        kind = "text" if isinstance(data, str) else "bytes"
        await self._inbox.put({"type": "websocket.receive", kind: data})

    async def get(self) -> str:
        async with asyncio.timeout(DEADLINE):
            event = await self._outbox.get()
        if event["type"] == "websocket.close":
            raise Closed(event["code"])
        text: str = event["text"]
        return text

    def is_quiet(self) -> bool:
        """Whether there are no unread frames."""
        return self._outbox.empty()


class Connection(Chat):
    """A socket to a server."""

    def __init__(
        self,
        server: Server,
        person: Person | None,
        key: str = "talk",
        *,
        protocols: Sequence[str] = (),
    ) -> None:
        """With `protocols` it sends no origin, like a program."""
        super().__init__(person, key)
        self.server = server
        self.deadline: float = DEADLINE
        """Maximum wait for the next frame, in seconds."""
        self.protocols = [websockets.Subprotocol(name) for name in protocols]

    async def __aenter__(self) -> Self:
        self.socket = await websockets.connect(
            f"ws://127.0.0.1:{self.server.port}/ws/chat/{self.key}/",
            origin=None if self.protocols else websockets.Origin(self.server.address),
            subprotocols=self.protocols or None,
            additional_headers={"Cookie": f"{settings.SESSION_COOKIE_NAME}={self.cookie}"},
            open_timeout=DEADLINE,
            max_size=None,
            proxy=None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.socket.close()

    async def put(self, data: str | bytes) -> None:
        await self.socket.send(data)

    async def get(self) -> str:
        try:
            async with asyncio.timeout(self.deadline):
                return str(await self.socket.recv())
        except websockets.ConnectionClosed as error:
            raise Closed(error.rcvd.code if error.rcvd else 1006) from None


class Server:
    """A server process that uses the test's database; it can be killed and started again."""

    def __init__(
        self,
        env: Mapping[str, str],
        log: Path,
        *,
        program: str = "uvicorn",
        redis_url: str = "",
        application: str = "tests.served:application",
        arguments: str = "",
        limits: Mapping[str, float] | None = None,
        **chatmemory: object,
    ) -> None:
        """`limits` are fields of `SocketLimits`; the rest are settings of the app.

        `arguments` are further ones of the program.
        """
        self.application = application
        self.arguments = arguments
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.program = program
        self.env = {
            **env,
            "DJANGO_SETTINGS_MODULE": "tests.server_settings",
            "REDIS_URL": redis_url,
            # Only runserver needs the app, whose import takes 0.3 s.
            **({} if program == "runserver" else {"WITHOUT_DAPHNE": "1"}),
            "TEST_NAME": str(log.parent),
            "LIMITS": json.dumps(limits or {}),
            "CHATMEMORY": json.dumps(
                {
                    "RESPONDER": "tests.speaker.answer",
                    "SENDS_PER_MINUTE": None,
                    "CONNECTIONS_PER_USER": None,
                    "READS_PER_MINUTE": None,
                    "WRITES_PER_MINUTE": None,
                    "TURNS_PER_USER": None,
                    "WAITS_PER_USER": None,
                    **chatmemory,
                }
            ),
        }
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.group: int | None = None
        """The process group. Gunicorn's workers remain in it when their parent is killed."""

    def start(self) -> Self:
        """Start it unless it runs."""
        if self.is_running:
            return self
        command = COMMANDS[self.program].format(port=self.port, application=self.application)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603  # our own command line
                [sys.executable, "-m", *command.split(), *self.arguments.split()],
                cwd=settings.BASE_DIR,
                env=self.env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.group = self.process.pid
        wait_for(lambda: is_listening(self.port), f"{self.program} does not start", self.log)
        return self

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server was never started"
        return self.process.pid

    def kill(self) -> None:
        """Kill the server and its workers with SIGKILL."""
        if self.group is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.group, signal.SIGKILL)
            self.group = None
        if self.process is not None:
            self.process.wait()
            self.process = None

    def terminate(self) -> int:
        """End it with SIGTERM, as a deploy does; return the exit status, negative for a signal."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(DEADLINE)
        self.kill()  # workers that remain; later another process may have the number of the group
        return code


@contextmanager
def started(folder: Path) -> Iterator[Callable[..., list[Server]]]:
    """Return a function that starts servers, and kill them at the end."""
    servers: list[Server] = []

    def start(
        number: int = 1, *, env: Mapping[str, str] | None = None, **options: Any
    ) -> list[Server]:
        env = {**database_environment(), **(env or {})}
        new = [Server(env, folder / f"{len(servers) + n}.log", **options) for n in range(number)]
        servers.extend(new)
        return [server.start() for server in new]

    try:
        yield start
    finally:
        for server in servers:
            server.kill()


@pytest.fixture
def person_with_talk(transactional_db: None) -> Person:
    """A signed-in user with an empty session `talk`."""
    person = sign_in()
    make_session(owner=person.user)
    return person


@pytest.fixture
def live_process(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Let this process run turns with a responder that repeats the message.

    It sweeps once a minute, so that no sweep repeats what a notification should do.
    """
    settings.CHATMEMORY = {
        "RESPONDER": "tests.responders_for_tests.echo",
        "SENDS_PER_MINUTE": None,
    }
    monkeypatch.setattr(hub.sweep, "seconds", 60)
    with own_threads():
        yield


@pytest.fixture
def start_servers(transactional_db: None, tmp_path: Path) -> Iterator[Callable[..., list[Server]]]:
    """A function that starts servers; they are killed after the test."""
    with started(tmp_path) as start:
        yield start


@pytest.fixture
def start_job_runner(
    live_database_env: dict[str, str],
) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """A function that starts `chatmemory_runner` with short leases; they are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        env = {
            **live_database_env,
            "DJANGO_SETTINGS_MODULE": "tests.server_settings",
            "WITHOUT_DAPHNE": "1",
            "REDIS_URL": "",
            "CHATMEMORY": json.dumps({"LEASE": 1}),
        }
        command = [sys.executable, "manage.py", "chatmemory_runner"]
        process = subprocess.Popen(  # noqa: S603  # our own command line
            command, cwd=settings.BASE_DIR, env=env, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Running turns as ")
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.communicate()


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[str]:
    """Serve the project in this process; yield its address."""
    from project.asgi import application

    port = port or free_port()
    config = uvicorn.Config(
        application, port=port, log_level="error", lifespan="off", ws="websockets-sansio"
    )
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(server.serve())
    async with asyncio.timeout(DEADLINE):
        while not server.started:  # noqa: ASYNC110  # it has no event to wait for
            await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


def use_responder(settings: Any, name: str, **more: object) -> None:
    """Let this process answer by a function of `tests.responders_for_tests`."""
    path = f"tests.responders_for_tests.{name}"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": path, **more}


@contextmanager
def own_threads() -> Iterator[None]:
    """End the threads of hub and runner before the fixtures empty the database."""
    responders_for_tests.reset()
    try:
        yield
    finally:
        responders_for_tests.GO.set()
        runner.shut_down()
        hub.shut_down()
        for thread in threading.enumerate():
            if thread.name == END_THREAD:  # it continues after the commit, with the database
                thread.join(DEADLINE)


def free_port() -> int:
    """Return a port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Whether a process listens on a port of this machine."""
    try:
        with closing(socket.create_connection(("127.0.0.1", port), timeout=1)):
            return True
    except OSError:
        return False


def wait_for(
    condition: Callable[[], bool],
    failure: str,
    log: Path | None = None,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Wait until the condition holds; fail with the text `failure` after the deadline.

    The deadline starts again whenever `progress` returns another value, so that work of many
    steps does not depend on the speed of the machine.
    """
    until, reached = time.monotonic() + DEADLINE, progress()
    while not condition():
        if (now := progress()) != reached:
            until, reached = time.monotonic() + DEADLINE, now
        if time.monotonic() > until:
            pytest.fail(f"{failure}: {log.read_text()[-2_000:] if log else ''}")
        time.sleep(0.01)


async def eventually(condition: Callable[[], object], failure: str = "it never happened") -> None:
    """Call `wait_for` in an event loop; the condition may use the database."""
    await sync_to_async(wait_for, thread_sensitive=True)(lambda: bool(condition()), failure)


@asynccontextmanager
async def connected(*chats: Chat) -> AsyncIterator[None]:
    """Open these sockets and send `hello` on each."""
    async with asyncio.TaskGroup() as group:
        for chat in chats:
            group.create_task(chat.__aenter__())  # type: ignore[attr-defined]  # each kind has it
    try:
        for chat in chats:
            await chat.hello()
        yield
    finally:
        for chat in chats:
            await chat.__aexit__(None, None, None)  # type: ignore[attr-defined]
