"""The settings of the app: one dictionary, `CHATMEMORY`, each key optional."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
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


def seconds(value: object) -> float:
    """A duration in seconds, given as a number or a `timedelta`. Raises ValueError."""
    return value.total_seconds() if isinstance(value, timedelta) else float(str(value))


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
        return seconds(value)


class OptionalDuration(Setting[float | None]):
    """The same, or None."""

    @overload
    def __get__(self, instance: None, owner: type[Settings]) -> Setting[float | None]: ...
    @overload
    def __get__(self, instance: Settings, owner: type[Settings]) -> float | None: ...
    def __get__(
        self, instance: Settings | None, owner: type[Settings]
    ) -> Setting[float | None] | float | None:
        if instance is None:
            return self
        value: object = super().__get__(instance, owner)
        return None if value is None else seconds(value)


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
    """Maximum length of a text of a model or tool, in characters. A run cuts a longer one, and
    the message says so; a reply that streams more is not read any further. Server code that
    stores a longer one gets `too_large`, unless it is `lenient`."""

    BUSY_POLICY = Setting("queue")
    """What becomes of a message that is sent while another is answered, unless the sender says:
    `queue` (it waits its turn), `reject` (it is refused, as `busy`) or `interrupt` (it goes
    before all that wait, and the reply that is under way ends with what was said so far).
    The chat page keeps a message that this setting refused, and sends it when a turn has ended."""

    QUEUE_DEPTH = Setting(5)
    """How many messages may wait in one session; more are refused, as `queue_full`."""

    TURN_TIMEOUT = Duration(300)
    """How long a run may take, in seconds; then it ends as failed, by `model_timeout`, with what
    was said so far."""

    LEASE = Duration(15)
    """How long a process owns a run without renewing, in seconds. After it, a dead process's
    run is ended by the next that looks."""

    DRAIN = Duration(8)
    """How long the turns of a process may go on after SIGTERM, in seconds; then they end as
    interrupted, with what was said so far. Storing that and closing sockets takes up to 12 s more,
    within the time that whoever sends the signal must give."""

    SESSION_TTL = OptionalDuration(None)
    """How long after its last message a session expires, in seconds; None for never. It doesn't
    while a turn waits or runs, nor on hold; one with an `expires_at` of its own expires then
    instead."""

    RETENTION = Setting[list[dict[str, object]]]([])
    """What `chatmemory_expire` removes by age: a list of rules. The first rule that applies to a
    session decides. A rule is a dict with any of `tag` (it applies only to sessions with this tag,
    which `tag_session` or an operator adds), `max_age` (older messages are trimmed), `max_idle`
    (sessions without a message for so long are purged), both in seconds, and `max_messages` (the
    oldest above this number are trimmed). A rule with a tag alone exempts its sessions. A rule
    without a tag applies to all, and must be the last. Nothing on hold is removed."""

    UNDO_DAYS = Setting(30)
    """For how many days what was removed can be restored; then `chatmemory_vacuum` deletes
    it."""

    USER_DELETED = Setting("purge")
    """What becomes of a user's sessions when the account is deleted: `purge` (they can be
    restored for `UNDO_DAYS`), `erase` (at once, for good) or `keep`. Those on hold are kept."""

    AUDIT_KEY = Setting("")
    """The secret of the audit's seals and hashes. Empty is Django's `SECRET_KEY`: that is for
    development, since rotating it would cut off the audit. Keep it as long as the audit."""

    AUDIT_KEY_FALLBACKS = Setting[list[str]]([])
    """Earlier values of `AUDIT_KEY`, which still verify what they sealed and recognize whom they
    hashed. If the audit was begun without an `AUDIT_KEY`, add the `SECRET_KEY` of that time."""

    ERASURE_LIST = Setting[str | Path | None](None)
    """Where each erasure is recorded outside the database, so that it can be repeated after a
    backup is restored: the absolute path of a file of JSON lines, or the dotted path of a
    callable that returns an object with `append(line)` and `lines()`. A line is durable before
    the first delete; if it cannot be written, nothing is erased. Keep each line as long as the
    oldest backup."""

    ALLOWED_ORIGINS = Setting[list[str] | None](None)
    """Origins that may open a websocket, each `scheme://host[:port]`. None is the page's own
    host, with the scheme and port that the server sees. The host must be one of Django's
    ALLOWED_HOSTS in either case."""

    SOCKET_AUTH = Setting[str | None](None)
    """Who opens a websocket: the dotted path of a function, sync or async, from its ASGI scope to
    None, a user, or a pair of a user and a text that identifies the credential, such as a token
    (see `VALID_LOGINS`). For clients that neither have Django's login nor get a ticket over REST.
    None is Django's login, as `AuthMiddlewareStack` found it. A ticket is accepted in any case."""

    VALID_LOGINS = Setting[str | None](None)
    """Which logins are still valid: the dotted path of a function from a list of
    `chatmemory.services.Login` to those of them that are. A login has `actor` and `credential`: the
    text that `SOCKET_AUTH` returned, or that of REST framework's `request.auth` that asked for a
    ticket. The function runs before each write, and every 5 s for the open sockets; it may use the
    database. Logins by a Django session are not passed to it: they end with their session. With
    None the others end with the account or its password alone."""

    REACH = Setting[str | None](None)
    """Who may chat: the dotted path of a function from the person, a
    `chatmemory.services.Actor`, to true or false; None is everybody who is signed in. It is asked
    at each `hello`, write and REST request, and may use the database. Each person reaches only
    their own sessions."""

    READS_PER_MINUTE = Setting[int | None](300)
    """How many REST reads and pages one person may ask for; None for no limit. Counted in Django's
    cache."""

    TOKENS_PER_DAY = Setting[int | None](None)
    """After how many tokens of a day (UTC) the messages of one person are refused as
    `rate_limited` until the day ends; None for no limit. Counted in Django's cache when a reply is
    stored: as the model reports them, else as TOKEN_COUNTER counts the window and the reply. What
    runs or waits meanwhile is not refused, so the limit can be exceeded."""

    MAX_SESSIONS_PER_USER = Setting[int | None](1_000)
    """How many sessions one person may have that are neither purged nor expired; None for no limit.
    Operators and servers may open more for them."""

    TURNS_PER_USER = Setting[int | None](3)
    """In how many sessions of one person turns may run at a time; further ones wait, the oldest
    goes first. Two processes that begin turns at the same moment can exceed it by one or two. Not
    for sessions of the scope `server`. None for no limit."""

    WAITS_PER_USER = Setting[int | None](5)
    """How many REST requests of one person may wait for a reply in one process; one more is
    refused as `rate_limited`. None for no limit."""

    WAITS_PER_PROCESS = Setting[int | None](100)
    """How many REST requests of all people may wait for a reply in one process. Each holds a thread
    and no database connection. Set it below the threads of a WSGI server. None for no limit."""

    CONNECTIONS_PER_USER = Setting[int | None](5)
    """How many websockets one person may have open in a process; with one more the oldest is
    closed. None for no limit."""

    CONNECTION_AGE = Duration(12 * 60 * 60)
    """How long a websocket stays open at most, in seconds; its client is told to come again."""

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
