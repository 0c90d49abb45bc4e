"""Two servers, and pages that run in Node.js."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cache
from itertools import count
from typing import Any

import pytest
from django.conf import settings

from tests.front_ends.node import HERE, Driver, node_or_skip
from tests.servers import Person, Server, sign_in, started

TOKEN = "a" * 32
BOT = "tests.front_ends.bot.answer"


class Page:
    """A page of a chat, at one of the servers, that a driver runs."""

    numbers = count(1)

    def __init__(
        self, driver: Driver, servers: list[Server], person: Person, kind: str, chat: str
    ) -> None:
        self.driver = driver
        self.servers = servers
        self.kind = kind
        self.chat = chat
        self.person = person
        self.name = f"page{next(self.numbers)}"
        cookie = f"{settings.SESSION_COOKIE_NAME}={person.cookie}; csrftoken={TOKEN}"
        self.call("open", at=0, kind=kind, chat=chat, cookie=cookie, token=TOKEN)

    @property
    def key(self) -> str:
        """The key of its session."""
        return self.chat if len(self.chat) == 36 else f"ui:{self.chat}"

    def start(self, name: str, *, at: int | None = None, **fields: object) -> Future[Any]:
        """Start a call of the driver; `at` chooses the server."""
        if at is not None:
            fields["server"] = self.servers[at].address
        return self.driver.start(name, page=self.name, **fields)

    def call(self, name: str, *, at: int | None = None, **fields: object) -> Any:
        return self.start(name, at=at, **fields).result(60)

    def other(self) -> Page:
        """Open the same chat in another page, at the other server."""
        return Page(self.driver, self.servers[::-1], self.person, self.kind, self.chat)


@pytest.fixture(scope="module")
def start_once(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., list[Server]]]:
    """A function that starts servers, once in a module for the same options."""
    with started(tmp_path_factory.mktemp("servers")) as start:
        yield cache(start)


@pytest.fixture
def servers(start_once: Callable[..., list[Server]], redis_url: str) -> list[Server]:
    """Two servers on one database and Redis, which the tests of a module share."""
    return start_once(2, redis_url=redis_url, RESPONDER=BOT, QUEUE_DEPTH=50)


@pytest.fixture(scope="module")
def run_driver() -> Iterator[Callable[..., Driver]]:
    """A function that starts a driver, once in a module."""
    drivers: list[Driver] = []

    @cache
    def run(script: str, *flags: str) -> Driver:
        drivers.append(Driver(node_or_skip(HERE), script, flags=flags))
        return drivers[-1]

    yield run
    for driver in drivers:
        driver.close()


@pytest.fixture
def open_page(
    transactional_db: None, run_driver: Callable[..., Driver], servers: list[Server]
) -> Callable[..., Page]:
    """A function that opens a page of a new chat."""

    def run(kind: str, chat: str = "", *, at: list[Server] = servers) -> Page:
        if kind in {"react", "queue", "vue", "svelte"}:
            flags = ("--import", "./svelte_modules.mjs", "--conditions", "svelte")
            driver = run_driver("drive_ai_sdk.mjs", *flags)
        elif kind == "assistant-ui":
            driver = run_driver("drive_assistant_ui.mjs")
        else:
            driver = run_driver("drive_ag_ui.mjs")
        return Page(driver, at, sign_in(), kind, chat or str(uuid.uuid4()))

    return run
