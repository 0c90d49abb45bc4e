"""The settings of the app: one dictionary, `CHATMEMORY`, each key optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Convert a number of seconds or a `timedelta` to seconds. Raises ValueError."""
    if isinstance(value, str):
        message = f"{value!r} is a string; use a number of seconds or a timedelta"
        raise ValueError(message)  # noqa: TRY004  # a wrong setting
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
    """A duration that may be None."""

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
    """All settings with their defaults."""

    RESPONDER = Setting("demo")
    """The source of replies: `demo` (offline), a model string for `init_chat_model` such as
    `openai:gpt-5`, or a dotted path to a Runnable, to a factory `f(session)` that returns one, or
    to an async generator function `f(messages, session)`."""

    INSTRUCTIONS = Setting("")
    """The system prompt of sessions without `instructions` of their own. Like the result of
    INSTRUCTIONS_FOR, it is read at each turn and not stored: a new prompt reaches old sessions."""

    INSTRUCTIONS_FOR = Setting[str | None](None)
    """Selects the system prompt of sessions without `instructions` of their own: the dotted path of
    a function, sync or async, from the session to a text; INSTRUCTIONS applies if it returns None
    or an empty text. If it fails, the turn fails with `instructions_failed`."""

    NEW_SESSION = Setting[str | None](None)
    """Completes a person's new session before it is stored: the dotted path of a function from a
    `chatmemory.services.Actor` and a dict of what the client sent (`session_key`, `title`) to a
    dict with any of `title`, `instructions`, `metadata`, `expires_at` and `ttl_seconds`, as
    `open_session` accepts them, or None. It may query the database, and be called more than once
    for one session. An error of `chatmemory.errors` that it raises is the answer to the client,
    such as `Forbidden("Your plan has no chat.")`; every other error is `internal`. In both cases
    nothing is stored."""

    METADATA_FILTERS = Setting[Sequence[str]](())
    """Keys of the metadata by whose texts lists of sessions can be filtered, such as "team":
    `list_sessions`, REST, where people thus learn the texts of their own sessions, and the admin,
    unless TRANSCRIPTS hides metadata. A key has letters, digits and underscores. Nothing is stored
    for them; docs/howto/new-sessions.md has the index that the admin of many sessions needs."""

    BEFORE_SEND = Setting[str | None](None)
    """Decides about each message of a person before it is stored, such as by plan or quota: the
    dotted path of a function, sync or async, from a `chatmemory.services.Actor` and a
    `chatmemory.services.Sending` to None. It may raise `chatmemory.errors.Refused`, whose sentence
    the person sees; every other error than those of `chatmemory.errors` is `internal`. Then nothing
    is stored: docs/howto/quotas.md."""

    TITLE = Setting[str | None](None)
    """Names new sessions: the dotted path of a function, sync or async, from the messages (those
    that a responder gets, and its reply) and the session to a title. It is called after a complete
    turn, one of the first three, while the session has no title; None never. It has 30 s, and its
    failure is only logged: docs/howto/titles.md."""

    SUGGESTIONS = Setting[Sequence[str]](())
    """Messages that a new chat offers as buttons, on its page and in the widget, such as "Where is
    my order?"; each at most 200 characters. They may be translated (`gettext_lazy`)."""

    WINDOW_TOKENS = Setting[int | None](8_000)
    """Maximum size of the window in tokens; None for no limit."""

    WINDOW_MESSAGES = Setting[int | None](None)
    """Maximum size of the window in messages; None for no limit."""

    WINDOW_JOIN = Setting(False)
    """Whether the window joins messages of one role that follow each other, such as two user
    messages after a failed turn, for providers that require users and replies to alternate."""

    WINDOW_SYSTEM_FIRST = Setting(False)
    """Whether the window has all system messages at its start, for providers that reject later
    ones."""

    TOKEN_COUNTER = Setting("approximate")
    """Counts a message's tokens when it is stored: `approximate` (one token for four characters,
    and three for each message), or a dotted path to a function from the text that the model
    receives to a number. An image, audio or file block counts MEDIA_TOKENS instead."""

    MEDIA_TOKENS = Setting(1_000)
    """How many tokens an image, audio or file block of a message counts, whatever its size; counted
    when the message is stored."""

    MAX_MESSAGE_CHARS = Setting(32_000)
    """Maximum length of a user's message, in characters."""

    MAX_REPLY_CHARS = Setting(1_000_000)
    """Maximum length of a text of a model or tool, in characters. A run truncates a longer one and
    marks the message, and stops reading the stream of a longer reply. Server code that stores a
    longer one gets `too_large`, unless it is `lenient`. For user messages that server code stores,
    MAX_MESSAGE_CHARS applies if it is higher."""

    MAX_MESSAGE_BYTES = Setting(8_000_000)
    """Maximum size of a message with its blocks, tool calls and artifact, as JSON in bytes. A run
    removes the largest parts of a larger one, but no text, and marks the message. Server code that
    stores a larger one gets `too_large`, unless it is `lenient`."""

    BUSY_POLICY = Setting("queue")
    """Policy for a message that is sent during a turn, unless the sender chooses one: `queue` (it
    waits), `reject` (it is rejected as `busy`) or `interrupt` (it goes to the front of the queue,
    and the running turn stops and keeps its partial text). The chat page keeps a message that this
    setting rejected, and sends it when a turn has ended."""

    QUEUE_DEPTH = Setting(5)
    """Maximum waiting messages in one session; more are rejected as `queue_full`."""

    TURN_TIMEOUT = Duration(300)
    """Maximum duration of a run, in seconds. A longer one ends as failed with `model_timeout`, and
    keeps its partial text."""

    LEASE = Duration(15)
    """How long a process owns a run without renewal, in seconds. After that, another process ends
    the run of a dead process."""

    DRAIN = Duration(8)
    """How long the turns of a process may continue after SIGTERM, in seconds. Then they end as
    interrupted, and keep their partial text. Storing it and closing the sockets takes up to 12 s
    more: the process manager must allow that time before it kills the process."""

    SESSION_TTL = OptionalDuration(None)
    """Time from a session's last message until it expires, in seconds; None for never. A session
    does not expire while a turn waits or runs, nor on hold. An `expires_at` of its own takes
    precedence."""

    RETENTION = Setting[list[dict[str, object]]]([])
    """Rules by which `chatmemory_expire` removes by age. The first rule that applies to a session
    decides. A rule is a dict with any of `tag` (it applies only to sessions with this tag, which
    `tag_session` or an operator adds), `max_age` (older messages are trimmed), `max_idle` (sessions
    without a message for that time are purged), both in seconds, and `max_messages` (the oldest
    above this number are trimmed). A rule with a tag alone skips its sessions. A rule without a
    tag applies to all sessions, and must be the last. Held sessions are skipped."""

    UNDO_DAYS = Setting(30)
    """How many days a removal can be restored; after that, `chatmemory_vacuum` deletes the rows,
    and of withdrawn messages the content. At most 36,500."""

    USER_DELETED = Setting("purge")
    """What happens to a user's sessions when the account is deleted: `purge` (they can be restored
    for `UNDO_DAYS`), `erase` (immediately and permanently) or `keep`. Held sessions are kept."""

    TRANSCRIPTS = Setting("normal")
    """What the admin shows of conversations: `normal`; `masked` (texts, titles, instructions,
    metadata and notes are unreadable until an operator with `view_unmasked` reveals a session with
    a reason, which the audit records); or `off` (no transcripts, to no operator). Exports, which
    have a permission of their own, are not masked."""

    AUDIT_KEY = Setting("")
    """The secret key of the audit's seals and hashes. Empty uses Django's `SECRET_KEY`, for
    development only: its rotation would make the audit unverifiable. Keep the key as long as the
    audit."""

    AUDIT_KEY_FALLBACKS = Setting[list[str]]([])
    """Earlier values of `AUDIT_KEY`, which still verify old seals and identify persons in old
    hashes. If the audit began without an `AUDIT_KEY`, add the `SECRET_KEY` of that time."""

    ERASURE_LIST = Setting[str | Path | None](None)
    """Storage outside the database for a record of each erasure, so that erasures can be repeated
    after a backup is restored: the absolute path of a file of JSON lines, or the dotted path of a
    callable that returns an object with `append(line)` and `lines()`. A line is durable before the
    first delete; if it cannot be written, nothing is erased. Keep each line as long as the oldest
    backup."""

    ALLOWED_ORIGINS = Setting[list[str] | None](None)
    """Origins that may open a websocket, each `scheme://host[:port]`. None allows only the page's
    own host, with the scheme and port that the server sees. In either case the host must be one of
    Django's ALLOWED_HOSTS."""

    SOCKET_AUTH = Setting[str | None](None)
    """Authenticates websockets: the dotted path of a function, sync or async, from the ASGI scope
    to None, a user, or a pair of a user and a string that identifies the credential, such as a
    token (see `VALID_LOGINS`). For clients that have neither Django's login nor a ticket from REST.
    None uses Django's login: the user that a middleware such as Channels' `AuthMiddlewareStack` has
    put into the scope, else the user of the session's cookie. Tickets are always accepted."""

    API_AUTHENTICATION = Setting[list[str]]([])
    """Means of authentication in the REST API beside Django's session: a list of dotted paths of
    REST framework's authentication classes, such as
    `rest_framework.authentication.TokenAuthentication`. They come before the session, which alone
    needs the CSRF token. A class must return an active user of AUTH_USER_MODEL. REST framework's
    own setting has no effect."""

    HEALTH_TOKEN = Setting("")
    """A secret of at least 32 characters with which monitors get details from `health/` of the REST
    API, as `Authorization: Bearer <secret>`. Empty gives the details to no one."""

    VALID_LOGINS = Setting[str | None](None)
    """Finds revoked logins: the dotted path of a function from a list of
    `chatmemory.services.Login` to the valid ones. A login has `actor` and `credential`: the string
    that `SOCKET_AUTH` returned, or REST framework's `request.auth` of the request for a ticket. The
    function is called before each write, and every 5 s for the open sockets; it may query the
    database. It never receives logins by a Django session, which end with the session. For REST
    framework's `TokenAuthentication`, set `chatmemory.api.tokens.valid_logins`. With None, other
    logins end only with the account or its password."""

    GATE = Setting[str | None](None)
    """Decides who gets in by more than the person, such as by the second factor in the Django
    session: the dotted path of a function, sync or async, from a `chatmemory.services.Visit` to
    None. It may raise an error of `chatmemory.errors`, such as `Refused`, whose sentence the person
    sees. It is called at each page, each REST request and each handshake of a websocket, before
    each write, and every 5 s for the open sockets: docs/howto/gate.md."""

    IMPERSONATOR = Setting[str | None](None)
    """Finds who really acts if staff view the chats of a person, as with django-impersonate: the
    dotted path of a function, sync or async, from a `chatmemory.services.Visit` to None, the user
    who really acts, or a pair of this user and the one whose chats are shown. Then nothing can be
    written, and removals are audited as the staff's. It is called whenever `GATE` is."""

    REACH = Setting[str | None](None)
    """Decides who may chat: the dotted path of a function from a `chatmemory.services.Actor` to
    true or false. None allows everyone who is signed in. The function is called at each `hello`,
    write and REST request, and may query the database. Each person reaches only their own
    sessions."""

    ALLOW_ANONYMOUS = Setting(False)
    """Whether persons without an account may chat: docs/howto/visitors.md. Each gets a secret in
    a cookie with the first message, and reaches only their own sessions. A Django login takes
    precedence."""

    VISITOR_DAYS = Setting(30)
    """After how many days without a request a visitor ends. `chatmemory_expire` then purges the
    visitor's sessions, except those on hold."""

    VISITOR_MAX_DAYS = Setting(90)
    """After how many days a visitor ends in any case, at most 400: browsers keep no cookie
    longer."""

    VISITOR_ADOPT = Setting("ask")
    """What happens to a visitor's sessions when the person signs in: `ask` (the page lists them,
    and moves them to the account after a confirmation), or `auto` (they move at the login if each
    had a message within the last hour, else as `ask`). On a shared computer they may be another
    person's."""

    VISITORS_PER_HOUR = Setting[int | None](30)
    """Maximum new visitors from one network address per hour: an IPv4 address, or the first 64 bits
    of an IPv6 address. All addresses of an IPv6 /48 together have ten times as many. None for no
    limit. Counted in Django's cache."""

    VISITORS_PER_MINUTE = Setting[int | None](300)
    """Maximum new visitors per minute, from all addresses; None for no limit. The last quarter is
    only for addresses (of IPv6: for a /48) without a new visitor in this hour, unless
    VISITORS_PER_HOUR is None. Counted in Django's cache."""

    VISITOR_SENDS_PER_MINUTE = Setting[int | None](60)
    """Maximum messages of all visitors with one network address per minute, beside
    SENDS_PER_MINUTE of each; an IPv6 /48 has ten times as many. None for no limit. Counted in
    Django's cache."""

    VISITOR_TOKENS_PER_DAY = Setting[int | None](None)
    """Maximum tokens of all visitors together per day (UTC), beside TOKENS_PER_DAY of each; None
    for no limit. Counted in Django's cache."""

    EMBEDS = Setting[Mapping[str, Sequence[str]]]({})
    """Other sites on which visitors may chat: the public key of each embed, and the list of its
    origins, such as `{"shop": ["https://shop.example"]}`. It needs ALLOW_ANONYMOUS. A host with
    many can give a mapping of its own, which is asked at each request."""

    EMBED_DAYS = Setting(7)
    """After how many days without a request a visitor of an embed ends, at most VISITOR_MAX_DAYS.
    Scripts of the other site can read the secret, so it is short."""

    EMBED_VISITORS_PER_MINUTE = Setting[int | None](100)
    """Maximum new visitors of one embed per minute, beside VISITORS_PER_HOUR and
    VISITORS_PER_MINUTE; its last quarter is reserved as that of VISITORS_PER_MINUTE. None for no
    limit. Counted in Django's cache."""

    TRUSTED_PROXIES = Setting[Sequence[str]](())
    """Networks of the proxies whose `X-Forwarded-For` names a visitor's address, such as
    `10.0.0.0/8`; `unix` is a proxy that connects by a UNIX socket. Others could invent addresses,
    so theirs is the address of the connection."""

    SELF_SERVICE = Setting[Sequence[str]](("export",))
    """What people may do with their own data over REST, without an operator: any of `export` (a
    file with all their stored sessions) and `erase` (delete all sessions that are not on hold,
    immediately and permanently)."""

    READS_PER_MINUTE = Setting[int | str | None](300)
    """Maximum REST reads and pages of one person per minute; None for no limit, or the dotted path
    of a function from the Actor to one of these. Counted in Django's cache."""

    WRITES_PER_MINUTE = Setting[int | str | None](60)
    """Maximum REST requests of one person per minute that write and send no message, together with
    exports, and with `rename` and `feedback` over websockets; None for no limit, or the dotted path
    of a function from the Actor to one of these. Counted in Django's cache."""

    TOKENS_PER_DAY = Setting[int | str | None](None)
    """Maximum tokens of one person per day (UTC); after that, messages are rejected as
    `rate_limited` until the day ends. None for no limit, or the dotted path of a function from the
    Actor to one of these. Counted in Django's cache when a reply is stored: as the model reports
    them, else as TOKEN_COUNTER counts the window and the reply. Turns that run or wait meanwhile
    are not rejected, so the limit can be exceeded."""

    MAX_SESSIONS_PER_USER = Setting[int | str | None](1_000)
    """Maximum sessions of one person that are neither purged nor expired; None for no limit, or the
    dotted path of a function from the Actor to one of these. Operators and server code may open
    more for them."""

    TURNS_PER_USER = Setting[int | None](3)
    """Maximum running turns of one person, over all sessions; further turns wait, and the oldest
    starts first. Two processes that start turns at the same moment can exceed it by one or two. Not
    for sessions of the scope `server`. None for no limit."""

    WAITS_PER_USER = Setting[int | None](5)
    """Maximum REST requests of one person in one process that wait for a reply; more are rejected
    as `rate_limited`. None for no limit."""

    WAITS_PER_PROCESS = Setting[int | None](100)
    """Maximum REST requests in one process that wait for a reply. Each occupies a thread, but no
    database connection. Set it below the threads of a WSGI server. None for no limit."""

    CONNECTIONS_PER_USER = Setting[int | None](5)
    """Maximum open websockets of one person in one process; another one closes the oldest. None for
    no limit."""

    CONNECTION_AGE = Duration(12 * 60 * 60)
    """Maximum age of a websocket, in seconds; then the server closes it, and its client
    reconnects."""

    DB_THREADS = Setting(4)
    """Threads for the database work of sockets and runs; as many as the connection pool has
    connections. 0 uses Django's own thread, for tests that roll back."""

    PREPARED_STATEMENTS = Setting[bool | None](None)
    """Whether psycopg prepares the app's statements. None prepares them if no pooler, such as
    PgBouncer, is between this process and PostgreSQL. True prepares them behind a pooler too: only
    for one that supports it, such as PgBouncer 1.22 with `max_prepared_statements`, and with
    libpq 17. Other databases ignore it."""

    LOCK_TIMEOUT = Duration(2)
    """How long a write waits for another write of the same session, in seconds. SQLite uses the
    `timeout` of its `DATABASES` entry instead."""

    IMAGE_ORIGINS = Setting[Sequence[str]](())
    """Origins from which replies may show images, each `scheme://host[:port]`. All other images
    become their description: an address that a model wrote could report to its host who reads
    what. The pages add the origins to their Content-Security-Policy."""

    ASSET_ORIGINS = Setting[Sequence[str]](())
    """Further origins from which the chat pages may load scripts, styles, fonts and data, each
    `scheme://host[:port]`, such as for templates of your own. The origin of the static files is
    always allowed. The pages add the origins to their Content-Security-Policy."""

    LOGOUT_URL = Setting[str | None](None)
    """Where *Sign out* on the chat pages leads: the name of a view, such as `members:sign_out`, or
    a path of this site. None tries the usual names: `logout`, `account_logout` of allauth, and
    `logout` in the namespaces `accounts`, `auth` and `users`. It gets a POST with the CSRF token.
    """

    SENDS_PER_MINUTE = Setting[int | str | None](30)
    """Maximum messages of one person per minute, over websockets and REST; None for no limit, or
    the dotted path of a function from the Actor to one of these. Counted in Django's cache."""


def register_settings(group: type[Settings]) -> None:
    """Let the settings of an optional app be keys of `CHATMEMORY`; a repeated call changes nothing.

    Call it in `ready()`. Raises ValueError if another setting has the name of one of them.
    """
    for name, setting in vars(group).items():
        if isinstance(setting, Setting):
            if getattr(Settings, name, setting) is not setting:
                raise ValueError(f"Another setting is named {name!r}.")
            setattr(Settings, name, setting)


settings = Settings()
