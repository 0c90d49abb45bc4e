"""The settings of the app: one dictionary, `CHATMEMORY`, each key optional."""

from __future__ import annotations

from datetime import timedelta
from typing import Generic, TypeVar, overload

from django.conf import settings as django_settings

T = TypeVar("T")


class Setting(Generic[T]):
    """One key of `CHATMEMORY`; read from Django's settings at each access."""

    def __init__(self, default: T) -> None:
        self.default = default

    def __set_name__(self, owner: type[Settings], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type[Settings]) -> Setting[T]: ...
    @overload
    def __get__(self, instance: Settings, owner: type[Settings]) -> T: ...
    def __get__(self, instance: Settings | None, owner: type[Settings]) -> Setting[T] | T:
        if instance is None:
            return self
        value: T = getattr(django_settings, "CHATMEMORY", {}).get(self.name, self.default)
        return value


class Duration(Setting[float]):
    """A setting in seconds that may be written as a `timedelta`."""

    @overload
    def __get__(self, instance: None, owner: type[Settings]) -> Setting[float]: ...
    @overload
    def __get__(self, instance: Settings, owner: type[Settings]) -> float: ...
    def __get__(self, instance: Settings | None, owner: type[Settings]) -> Setting[float] | float:
        if instance is None:
            return self
        value: object = super().__get__(instance, owner)
        return value.total_seconds() if isinstance(value, timedelta) else float(str(value))


class Settings:
    """What can be set, with its default."""

    RESPONDER = Setting("demo")
    """Who answers: `demo` (offline), a model string for `init_chat_model` such as
    `openai:gpt-5`, or a dotted path to a Runnable, to a factory `f(session)` that returns
    one, or to an async generator function `f(messages, session)`."""

    WINDOW_TOKENS = Setting[int | None](8_000)
    """How much history the model is given, in tokens; None for no limit."""

    WINDOW_MESSAGES = Setting[int | None](None)
    """How much history the model is given, in messages; None for no limit."""

    TOKEN_COUNTER = Setting("approximate")
    """How a message's tokens are counted when it is stored: `approximate` (four characters
    each, three more for each message), or a dotted path to a function from the text that the
    model is given to a number."""

    MAX_MESSAGE_CHARS = Setting(32_000)
    """Longest message taken from a person, in characters."""

    MAX_REPLY_CHARS = Setting(1_000_000)
    """Longest text kept of what a model or tool sends, in characters; the rest is cut, and
    the message says so."""

    TURN_TIMEOUT = Duration(300)
    """How long a run may take, in seconds; then it ends as failed with what was said so far."""

    LEASE = Duration(15)
    """How long a process owns a run without renewing, in seconds. After it, a dead process's
    run is ended by the next that looks."""

    ALLOWED_ORIGINS = Setting[list[str] | None](None)
    """Origins that may open a websocket, each `scheme://host[:port]`. None is the page's own
    host, with the scheme and port that the server sees."""

    DB_THREADS = Setting(4)
    """Threads for the database work of sockets and runs, as many as the connection pool has
    connections. 0 is Django's own thread, for tests that roll back."""

    LOCK_TIMEOUT = Duration(2)
    """How long a write waits for another of the same session, in seconds. SQLite waits as
    long as the `timeout` of its `DATABASES` entry says."""

    SENDS_PER_MINUTE = Setting[int | None](30)
    """How many messages one person may send over websockets and REST; None for no limit.
    Counted in Django's cache."""


settings = Settings()
