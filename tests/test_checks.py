"""Checks: a wrong setting is reported with a hint; correct settings pass."""

from __future__ import annotations

import py_compile
import sys
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import pytest
from django.conf import settings as django_settings
from django.core.checks.registry import registry
from django.test import override_settings
from django.utils.translation import gettext_lazy
from langchain.chat_models.base import _BUILTIN_PROVIDERS
from langsmith.utils import get_env_var, tracing_is_enabled

from chatmemory.checks.deployment import check_deployment
from chatmemory.checks.project import (
    TRACING_VARIABLES,
    check_atomic_requests,
    check_autocommit,
    check_pool,
    check_sqlite,
)
from chatmemory.checks.responders import provider_packages

pytestmark = pytest.mark.django_db  # checks read the features of the database

PUBSUB = "channels_redis.pubsub.RedisPubSubChannelLayer"
MEMORY = "channels.layers.InMemoryChannelLayer"
TOKENS = "rest_framework_simplejwt.authentication.JWTAuthentication"
EVIDENCE = {"AUDIT_KEY": "k" * 50, "ERASURE_LIST": "/var/lib/erasures.jsonl"}


def found(*, deploy=False, **changed):
    """Return the messages of this app's checks under these settings, by id.

    Those of others take most of the time: drf-spectacular's writes the whole schema.
    """
    ours = [check for check in registry.get_checks(deploy) if is_ours(check)]
    with override_settings(**changed):
        messages = [message for check in ours for message in check(app_configs=None)]
    return {str(m.id): f"{m.msg} {m.hint}" for m in messages}


def is_ours(check):
    return check.__module__.startswith("chatmemory.")


def layer(backend=PUBSUB, **config):
    return {"CHANNEL_LAYERS": {"default": {"BACKEND": backend, "CONFIG": config}}}


@pytest.mark.parametrize(
    "correct",
    [
        {},
        {"WINDOW_TOKENS": None, "WINDOW_MESSAGES": 1, "SENDS_PER_MINUTE": None},
        {"DRAIN": 0, "DB_THREADS": 0, "LEASE": 5, "TURN_TIMEOUT": timedelta(minutes=1)},
        {"TOKEN_COUNTER": "math.ceil", "SENDS_PER_MINUTE": "math.ceil"},
        {"SESSION_TTL": timedelta(days=1), "UNDO_DAYS": 0, "USER_DELETED": "keep"},
        {"SUGGESTIONS": ["Where is my order?", gettext_lazy("Help")]},
        {"METADATA_FILTERS": ["team", "cost_center"]},
        {"UNDO_DAYS": 36_500},
        {"RETENTION": [{"tag": "kept"}, {"max_age": timedelta(days=1), "max_messages": 9}]},
        {"RESPONDER": "tests.responders_for_tests.echo"},
        {"ERASURE_LIST": Path("/var/lib/erasures.jsonl")},
        {"ERASURE_LIST": "tests.services.erasure.test_erasure_list.Shelf"},
        {"RESPONDER": "openai:gpt-5"},
        {"HEALTH_TOKEN": "k" * 32},
        {"API_AUTHENTICATION": [TOKENS, "rest_framework.authentication.BasicAuthentication"]},
        {"ALLOWED_ORIGINS": ["https://example.org", "http://127.0.0.1:8000"]},
        {"IMAGE_ORIGINS": ("https://example.org", "http://[::1]:8000")},
    ],
)
def test_correct_settings_pass(correct):
    assert found(CHATMEMORY=correct) == {}


@pytest.mark.parametrize(
    ("given", "expected", "word"),
    [
        ([], "E001", "dictionary"),
        (None, "E001", "dictionary"),
        ({"WINDOW_TOKEN": 5}, "W001", "WINDOW_TOKENS"),
        ({"busy_policy": "queue"}, "W001", "mean BUSY_POLICY"),
        ({5: 5}, "W001", "RESPONDER"),
        ({"WINDOW_TOKENS": 0}, "E002", "WINDOW_TOKENS"),
        ({"WINDOW_MESSAGES": "5"}, "E002", "WINDOW_MESSAGES"),
        ({"MAX_MESSAGE_CHARS": None}, "E002", "MAX_MESSAGE_CHARS"),
        ({"MAX_REPLY_CHARS": 1.5}, "E002", "MAX_REPLY_CHARS"),
        ({"MAX_MESSAGE_BYTES": None}, "E002", "MAX_MESSAGE_BYTES"),
        ({"MEDIA_TOKENS": -1}, "E002", "MEDIA_TOKENS"),
        ({"WINDOW_JOIN": "yes"}, "E002", "WINDOW_JOIN"),
        ({"WINDOW_SYSTEM_FIRST": None}, "E002", "WINDOW_SYSTEM_FIRST"),
        ({"DB_THREADS": -1}, "E002", "DB_THREADS"),
        ({"SENDS_PER_MINUTE": True}, "E002", "SENDS_PER_MINUTE"),
        ({"LEASE": 0}, "E003", "above 0"),
        ({"LEASE": float("inf")}, "E003", "LEASE"),
        ({"LEASE": float("nan")}, "E003", "LEASE"),
        ({"DRAIN": -1}, "E003", "of 0 or more"),
        ({"DRAIN": None}, "E003", "DRAIN"),
        ({"TURN_TIMEOUT": "soon"}, "E003", "TURN_TIMEOUT"),
        ({"TURN_TIMEOUT": "90"}, "E003", "'90' is a string"),
        ({"SESSION_TTL": "90"}, "E003", "'90' is a string"),
        ({"SESSION_TTL": 1e300}, "E003", "at most 100 years"),
        ({"SESSION_TTL": timedelta.max}, "E003", "at most 100 years"),
        ({"LEASE": True}, "E003", "LEASE"),
        ({"LOCK_TIMEOUT": None}, "E003", "LOCK_TIMEOUT"),
        ({"LEASE": timedelta(seconds=-1)}, "E003", "LEASE"),
        ({"SESSION_TTL": 0}, "E003", "SESSION_TTL"),
        ({"UNDO_DAYS": None}, "E002", "UNDO_DAYS"),
        ({"UNDO_DAYS": 36_501}, "E002", "from 0 to 36,500"),
        ({"UNDO_DAYS": 10**30}, "E002", "UNDO_DAYS"),
        ({"QUEUE_DEPTH": 0}, "E002", "QUEUE_DEPTH"),
        ({"QUEUE_DEPTH": None}, "E002", "QUEUE_DEPTH"),
        ({"PREPARED_STATEMENTS": "yes"}, "E002", "True, False or None"),
        ({"SELF_SERVICE": "export"}, "E016", "a list with any of export, erase"),
        ({"SELF_SERVICE": ["export", "delete"]}, "E016", "SELF_SERVICE"),
        ({"SELF_SERVICE": None}, "E016", "SELF_SERVICE"),
        ({"SELF_SERVICE": [["export"]]}, "E016", "SELF_SERVICE"),
        ({"HEALTH_TOKEN": "k" * 31}, "E002", "32 or more characters"),
        ({"HEALTH_TOKEN": None}, "E002", "HEALTH_TOKEN"),
        ({"BUSY_POLICY": "wait"}, "E011", "queue, reject, interrupt"),
        ({"BUSY_POLICY": None}, "E011", "BUSY_POLICY"),
        ({"RETENTION": {"max_age": 5}}, "E009", "list"),
        ({"RETENTION": [{}]}, "E009", "[0]"),
        ({"RETENTION": [{"tag": "a"}, {"age": 5}]}, "E009", "[1]: unknown 'age'"),
        ({"RETENTION": [{"max_age": "soon"}]}, "E009", "[0]"),
        ({"RETENTION": [{"max_age": "90"}]}, "E009", "'90' is a string"),
        ({"RETENTION": [{"max_idle": -5}]}, "E009", "above 0"),
        ({"RETENTION": [{"max_idle": 0}]}, "E009", "above 0"),
        ({"RETENTION": [{"max_age": float("nan")}]}, "E009", "above 0"),
        ({"RETENTION": [{"max_idle": 1e300}]}, "E009", "100 years"),
        ({"RETENTION": [{"max_messages": 0}]}, "E009", "max_messages"),
        ({"RETENTION": [{"tag": ["a"]}]}, "E009", "tag"),
        ({"RETENTION": [{"max_age": 5}, {"tag": "kept"}]}, "E009", "[1] never applies"),
        ({"USER_DELETED": "forget"}, "E010", "keep"),
        ({"TRANSCRIPTS": "hidden"}, "E018", "masked"),
        ({"TRANSCRIPTS": None}, "E018", "masked"),
        ({"ALLOW_ANONYMOUS": "no"}, "E002", "ALLOW_ANONYMOUS"),
        ({"VISITOR_DAYS": 0}, "E002", "from 1 to 400"),
        ({"VISITOR_MAX_DAYS": 401}, "E002", "from 1 to 400"),
        ({"VISITOR_ADOPT": "always"}, "E020", "ask or auto"),
        ({"VISITORS_PER_HOUR": 0}, "E002", "VISITORS_PER_HOUR"),
        ({"TRUSTED_PROXIES": "10.0.0.0/8"}, "E019", "list"),
        ({"TRUSTED_PROXIES": ["10.0.0.1/8"]}, "E019", "host bits"),
        ({"TRUSTED_PROXIES": ["nginx"]}, "E019", "nginx"),
        ({"ALLOWED_ORIGINS": "https://example.org"}, "E007", "list"),
        ({"ALLOWED_ORIGINS": ["example.org"]}, "E007", "'example.org'"),
        ({"ALLOWED_ORIGINS": ["https://example.org/chat"]}, "E007", "/chat"),
        ({"ALLOWED_ORIGINS": ["*"]}, "E007", "'*'"),
        ({"IMAGE_ORIGINS": "https://example.org"}, "E007", "list"),
        ({"IMAGE_ORIGINS": None}, "E007", "IMAGE_ORIGINS"),
        ({"IMAGE_ORIGINS": ["https://example.org/a"]}, "E007", "/a"),
        ({"IMAGE_ORIGINS": ["https://a.example;script-src *"]}, "E007", "script-src"),
        ({"ASSET_ORIGINS": ["cdn.example"]}, "E007", "ASSET_ORIGINS"),
        ({"RESPONDER": "nonsense"}, "E008", "provider:model"),
        ({"EMBEDS": ["shop"]}, "E022", "map each public key"),
        ({"EMBEDS": {"shop": "https://shop.example"}}, "E022", "'https://shop.example'"),
        ({"EMBEDS": {"a b": []}}, "E022", "'a b'"),
        ({"EMBEDS": {"shop": ["https://shop.example/"]}}, "E022", "'https://shop.example/'"),
        ({"SUGGESTIONS": "Where is my order?"}, "E021", "a list of texts"),
        ({"SUGGESTIONS": ["Help", " "]}, "E021", "1 to 200 characters"),
        ({"SUGGESTIONS": ["x" * 201]}, "E021", "1 to 200 characters"),
        ({"SUGGESTIONS": [5]}, "E021", "a list of texts"),
        ({"METADATA_FILTERS": "team"}, "E002", "a list of keys"),
        ({"METADATA_FILTERS": ["0"]}, "E002", "begin with no digit"),
        ({"METADATA_FILTERS": ["a:b"]}, "E002", "ASCII letters"),
        ({"METADATA_FILTERS": [5]}, "E002", "a list of keys"),
        ({"RESPONDER": "nowhere.bot"}, "E008", "nowhere.bot"),
        ({"RESPONDER": "tests.test_checks.fund"}, "E008", "fund"),
        ({"RESPONDER": "__main__.bot"}, "E008", "__main__"),
        ({"RESPONDER": ".bot"}, "E008", "'.bot'"),
        ({"RESPONDER": None}, "E008", "None"),
        ({"API_AUTHENTICATION": TOKENS}, "E017", "list"),
        ({"API_AUTHENTICATION": [5]}, "E017", "5"),
        ({"API_AUTHENTICATION": ["nowhere.Tokens"]}, "E017", "'nowhere.Tokens' cannot be imported"),
        ({"API_AUTHENTICATION": [".Tokens"]}, "E017", "'.Tokens' cannot be imported"),
        ({"API_AUTHENTICATION": ["..Tokens"]}, "E017", "'..Tokens' cannot be imported"),
        (
            {"API_AUTHENTICATION": ["rest_framework.authentication.BaseAuthentication"]},
            "E017",
            "does not define authenticate",
        ),
        ({"API_AUTHENTICATION": ["math.floor"]}, "E017", "not an authentication class"),
        ({"API_AUTHENTICATION": ["decimal.Decimal"]}, "E017", "not an authentication class"),
        (
            {"API_AUTHENTICATION": ["rest_framework.authentication.SessionAuthentication"]},
            "E017",
            "remove it",
        ),
        ({"TOKEN_COUNTER": "nowhere.count"}, "E004", "nowhere.count"),
        ({"TOKEN_COUNTER": "tests.test_checks.PUBSUB"}, "E004", "PUBSUB"),
        ({"TITLE": "nowhere.name"}, "E004", "No module named 'nowhere'"),
        ({"TITLE": "tests.titles_for_tests.first_word"}, "E004", "Did you mean first_words?"),
        ({"TITLE": "tests.titles_for_test.first_words"}, "E004", "tests.titles_for_tests?"),
        ({"TITLE": "tests.titles_for_tests"}, "E004", "is a module; name the function"),
        ({"TITLE": 5}, "E004", "path of a function"),
        ({"TITLE": "tests.instructions_for_tests.failing"}, "E004", "does not accept 2 arguments"),
        ({"REACH": "tests.titles_for_tests.slow"}, "E004", "does not accept 1 argument."),
        ({"TOKENS_PER_DAY": "nowhere.limit"}, "E004", "No module named 'nowhere'"),
        ({"TOKENS_PER_DAY": "tests.titles_for_tests.slow"}, "E004", "does not accept 1 argument."),
        ({"TURNS_PER_USER": "math.ceil"}, "E002", "TURNS_PER_USER"),
        ({"INSTRUCTIONS_FOR": "tests.instructions_for_tests"}, "E004", "is a module"),
        ({"INSTRUCTIONS": ["Be short."]}, "E002", "INSTRUCTIONS_FOR names a function"),
        ({"SOCKET_AUTH": "nowhere.sign_in"}, "E004", "SOCKET_AUTH"),
        ({"REACH": 5}, "E004", "REACH"),
        ({"REACH": ".reach"}, "E004", "REACH"),
        ({"REACH": "..reach"}, "E004", "REACH"),
        ({"VALID_LOGINS": "nowhere.valid"}, "E004", "VALID_LOGINS"),
        ({"ERASURE_LIST": "erasures.jsonl"}, "E004", "absolute path"),
        ({"ERASURE_LIST": 5}, "E004", "ERASURE_LIST"),
        ({"AUDIT_KEY": None}, "E002", "AUDIT_KEY"),
        ({"AUDIT_KEY_FALLBACKS": "former"}, "E002", "AUDIT_KEY_FALLBACKS"),
        ({"AUDIT_KEY_FALLBACKS": [""]}, "E002", "list of non-empty strings"),
        ({"CONNECTIONS_PER_USER": 0}, "E002", "CONNECTIONS_PER_USER"),
        ({"CONNECTION_AGE": 0}, "E003", "CONNECTION_AGE"),
    ],
)
def test_a_wrong_setting_is_reported(given, expected, word):
    messages = found(CHATMEMORY=given, deploy=expected == "E001")
    assert [one for one in messages if one != "chatmemory.W007"] == [f"chatmemory.{expected}"]
    assert word in messages[f"chatmemory.{expected}"]


@pytest.fixture
def responder(tmp_path, monkeypatch):
    """Return a function that checks `bot` in a new module with the given source."""
    monkeypatch.syspath_prepend(tmp_path)
    names: list[str] = []

    def check(source):
        name = f"bots_{uuid4().hex}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text(f"{source}\n")
        return found(CHATMEMORY={"RESPONDER": f"{name}.bot"})

    yield check
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "source",
    [
        "async def bot(messages, session): yield 'hi'",
        "def bot(session): return None",
        "async def bot(session, model='x'): return None",
        "class bot:\n  def __init__(self, session): pass",
        "class Bot:\n  async def __call__(self, *given): yield 'hi'\nbot = Bot()",
        "import functools\nasync def f(x, y, z): yield x\nbot = functools.partial(f, 1)",
        "from langchain_core.runnables import RunnableLambda\nbot = RunnableLambda(str)",
        "def __getattr__(name): return print",
        "globals()['b' + 'ot'] = dict",
    ],
)
def test_a_responder_that_can_be_imported_passes(responder, source):
    assert responder(source) == {}


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("", 'does not define a "bot"'),
        ("def boot(): return 1", "Did you mean boot?"),
        ("import nowhere.bot", "No module named 'nowhere'. It is imported by "),
        ("from json import nothing as bot", "cannot import name 'nothing'"),
    ],
)
def test_a_responder_that_cannot_be_imported_is_an_error_with_its_cause(responder, source, hint):
    assert hint in responder(source)["chatmemory.E008"]


@pytest.mark.regression
@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("async def bot(messages): yield 'hi'", "is called as f(messages, session)"),
        ("class Bot:\n  async def __call__(self): yield 'hi'\nbot = Bot()", "f(messages, session)"),
        ("def bot(messages, session): yield 'hi'", "must be `async def`"),
        ("def bot(messages, session): return 'hi'", "called as f(session)"),
        ("async def bot(messages, session): return 'hi'", "called as f(session)"),
        ("class bot: pass", "called as f(session)"),
        ("from langchain_core.tools import tool as bot", "tool is of langchain_core.tools."),
        ("from functools import cache as bot", "cache is of functools: name your own function"),
        ("bot = 5", "Name an async generator function"),
        ("bot = 'openai:gpt-5'", "Name an async generator function"),
    ],
)
def test_an_object_that_cannot_reply_is_an_error(responder, source, hint):
    message = responder(source)["chatmemory.E008"]
    assert "which cannot reply." in message
    assert hint in message


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("def bot(:", "SyntaxError"),
        ("bot = {}['OPENAI_API_KEY']", "KeyError: 'OPENAI_API_KEY'"),
    ],
)
def test_a_module_that_raises_is_only_a_warning(responder, source, cause):
    messages = responder(source)
    assert list(messages) == ["chatmemory.W021"]
    assert cause in messages["chatmemory.W021"]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (layer("nowhere.Layer"), "nowhere"),
        (layer(MEMORY, wrong=1), "wrong"),
        ({"CHANNEL_LAYERS": {"default": {"CONFIG": {}}}}, "BACKEND"),
        (layer("tests.layers.PickyLayer"), "KeyError: 'host'"),
    ],
)
def test_a_channel_layer_that_cannot_be_created_is_reported_with_its_error(wrong, word):
    assert word in found(**wrong)["chatmemory.E005"]


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["redis://127.0.0.1"],
        [("127.0.0.1", 6379)],
        [{"address": "redis://127.0.0.1"}],
        [{"address": "redis://127.0.0.1", "socket_timeout": 5}],
        [{"address": "redis://127.0.0.1", "socket_timeout": None}, "redis://127.0.0.2"],
    ],
)
def test_a_redis_layer_that_times_out_after_5_seconds_is_an_error(hosts):
    assert "socket_timeout" in found(**layer(hosts=hosts))["chatmemory.E006"]


@pytest.mark.parametrize(
    "correct",
    [
        layer(hosts=[{"address": "redis://127.0.0.1", "socket_timeout": None}]),
        layer(hosts=[{"address": "redis://127.0.0.1", "socket_timeout": 30}]),
        {"CHANNEL_LAYERS": {}},
        layer(MEMORY),
    ],
)
def test_a_working_layer_passes(correct):
    assert found(**correct) == {}


@contextmanager
def changed_databases(databases):
    """Replace DATABASES by a patch, since Django warns if a test overrides it."""
    # Django keeps each value that it has read in the dict.
    with (
        patch.dict(vars(django_settings)),
        patch.object(django_settings._wrapped, "DATABASES", databases),
    ):
        vars(django_settings).pop("DATABASES", None)
        yield


@pytest.mark.parametrize(
    ("entry", "expected", "word"),
    [
        ({"ENGINE": "django.db.backends.sqlite3"}, "W002", "IMMEDIATE"),
        ({"ENGINE": "django.db.backends.postgresql", "ATOMIC_REQUESTS": True}, "W003", "lock"),
    ],
)
def test_a_database_on_which_writers_block_each_other_is_a_warning(entry, expected, word):
    check = {"W002": check_sqlite, "W003": check_atomic_requests}[expected]
    with changed_databases({"default": entry}):
        [message] = check(None)
    assert message.id == f"chatmemory.{expected}"
    assert word in f"{message.msg} {message.hint}"


class WritesTo:
    """A router of the host."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def db_for_write(self, model: object, **_: object) -> str:
        return self.alias


@pytest.mark.parametrize(("written", "expected"), [("default", []), ("chats", ["chatmemory.E015"])])
def test_a_database_of_chatmemory_without_autocommit_is_an_error(written, expected):
    entry = {"ENGINE": "django.db.backends.postgresql"}
    databases = {"default": {**entry, "AUTOCOMMIT": True}, "chats": {**entry, "AUTOCOMMIT": False}}
    with (
        changed_databases(databases),
        override_settings(DATABASE_ROUTERS=[WritesTo(written)]),
    ):
        messages = check_autocommit(None)
    assert [message.id for message in messages] == expected
    assert all("'chats'" in message.msg for message in messages)


def test_a_layer_that_drops_messages_is_a_warning():
    hosts = [{"address": "redis://127.0.0.1", "socket_timeout": None}]
    messages = found(**layer("channels_redis.core.RedisChannelLayer", hosts=hosts))
    assert list(messages) == ["chatmemory.W004"]
    assert "pubsub" in messages["chatmemory.W004"]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"LEASE": 4}, "pauses"),
        ({"LEASE": 60, "TURN_TIMEOUT": 30}, "detected"),
        ({"DRAIN": 60, "TURN_TIMEOUT": 30}, "No turn runs that long"),
    ],
)
def test_contradictory_durations_are_a_warning(given, word):
    messages = found(CHATMEMORY=given)
    assert list(messages) == ["chatmemory.W005"]
    assert word in messages["chatmemory.W005"]


@pytest.mark.parametrize(
    ("pool", "threads", "is_large_enough"),
    [
        ({"max_size": 10}, 4, True),
        ({"max_size": 4}, 4, False),
        ({"min_size": 6}, 4, True),
        ({}, 4, True),
        ({"min_size": 1, "timeout": 5}, 1, False),
        (True, 4, False),
        (True, 3, True),
        (False, 99, True),
    ],
)
def test_a_pool_that_is_not_larger_than_db_threads_is_a_warning(pool, threads, is_large_enough):
    entry = {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"pool": pool}}
    databases = changed_databases({"default": entry})
    with databases, override_settings(CHATMEMORY={"DB_THREADS": threads}):
        assert [message.id for message in check_pool(None)] == (
            [] if is_large_enough else ["chatmemory.W006"]
        )


def test_a_database_in_memory_is_a_warning():
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    entry["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
    with changed_databases({"default": entry}):
        assert [message.id for message in check_sqlite(None)] == ["chatmemory.W009"]


def test_a_database_without_conversations_is_not_checked():
    entry = {"ENGINE": "django.db.backends.sqlite3"}
    with changed_databases({"default": {"ENGINE": "django.db.backends.postgresql"}, "old": entry}):
        assert check_sqlite(None) == []


def cached_by(backend):
    """Return settings with this cache backend."""
    return {"CACHES": {"default": {"BACKEND": f"django.core.cache.backends.{backend}"}}}


NO_LIMITS = {"SENDS_PER_MINUTE": None, "READS_PER_MINUTE": None, "WRITES_PER_MINUTE": None}
SHARED = layer(hosts=[{"address": "redis://127.0.0.1", "socket_timeout": None}])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (SHARED, []),
        (layer(MEMORY), ["W007"]),
        ({"CHANNEL_LAYERS": {}}, ["W007"]),
        ({**SHARED, **cached_by("locmem.LocMemCache")}, ["W010"]),
        ({**SHARED, **cached_by("dummy.DummyCache")}, ["W010"]),
        ({**SHARED, **cached_by("redis.RedisCache")}, []),
        (
            {
                **SHARED,
                **cached_by("locmem.LocMemCache"),
                "CHATMEMORY": NO_LIMITS,
            },
            [],
        ),
        (
            {
                **SHARED,
                **cached_by("locmem.LocMemCache"),
                "CHATMEMORY": {**NO_LIMITS, "TOKENS_PER_DAY": 5},
            },
            ["W010"],
        ),
        ({**SHARED, "ALLOWED_HOSTS": ["*"]}, ["W008"]),
        (
            {
                **SHARED,
                "ALLOWED_HOSTS": ["*"],
                "CHATMEMORY": {"ALLOWED_ORIGINS": ["https://example.org"]},
            },
            [],
        ),
        ({**SHARED, "CHATMEMORY": {"DB_THREADS": 0}}, ["E012"]),
        ({**SHARED, "CHATMEMORY": {"SOCKET_AUTH": "math.floor"}}, ["W013"]),
        ({**SHARED, "CHATMEMORY": {"API_AUTHENTICATION": [TOKENS]}}, ["W013"]),
        (
            {
                **SHARED,
                "CHATMEMORY": {"SOCKET_AUTH": "math.floor", "VALID_LOGINS": "math.floor"},
            },
            [],
        ),
    ],
)
def test_settings_for_development_are_reported_at_deployment(given, expected):
    usual = {"ALLOWED_HOSTS": ["example.org"], **cached_by("redis.RedisCache")}
    settings = {**EVIDENCE, **given.get("CHATMEMORY", {})}
    given = {**usual, **given, "CHATMEMORY": settings}
    assert list(found(deploy=True, **given)) == [f"chatmemory.{one}" for one in expected]
    assert found(**given) == {}


@pytest.mark.regression
@pytest.mark.regression
def test_visitors_without_https_are_reported_at_deployment():
    visitors = {"CHATMEMORY": {"ALLOW_ANONYMOUS": True}}
    proxied = {"SECURE_PROXY_SSL_HEADER": ("HTTP_X_FORWARDED_PROTO", "https")}
    assert "SECURE_PROXY_SSL_HEADER" in found(deploy=True, **visitors)["chatmemory.W023"]
    for given in (proxied, {"SECURE_SSL_REDIRECT": True}, {"CHATMEMORY": {}}):
        assert "chatmemory.W023" not in found(deploy=True, **{**visitors, **given})
    assert "chatmemory.W023" not in found(**visitors)


@pytest.mark.parametrize(("missing", "warning"), [("AUDIT_KEY", "W015"), ("ERASURE_LIST", "W020")])
def test_a_missing_setting_of_the_audit_is_reported_at_deployment(missing, warning):
    name = f"chatmemory.{warning}"
    given = {key: value for key, value in EVIDENCE.items() if key != missing}
    assert missing in found(deploy=True, CHATMEMORY=given)[name]
    assert name not in found(CHATMEMORY=given)
    assert name not in found(deploy=True, CHATMEMORY=EVIDENCE)


@pytest.mark.regression
@pytest.mark.parametrize("engine", ["sqlite3", "postgresql"])
def test_a_cache_per_process_is_reported_unless_the_database_is_sqlite(engine):
    given = {**layer(MEMORY), **cached_by("locmem.LocMemCache"), "ALLOWED_HOSTS": ["example.org"]}
    database = {"default": {"ENGINE": f"django.db.backends.{engine}", "NAME": "x"}}
    with (
        override_settings(CHATMEMORY={}, **given),
        changed_databases(database),
    ):
        ids = {message.id for message in check_deployment(None)}
    assert ("chatmemory.W010" in ids) == (engine == "postgresql")


@pytest.mark.regression
@pytest.mark.parametrize("name", ["django_tenants", "tenant_schemas"])
def test_apps_that_select_a_schema_for_each_request_are_an_error(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    messages = found(INSTALLED_APPS=[*django_settings.INSTALLED_APPS, name])
    assert name in messages["chatmemory.E014"]
    assert "another tenant's sessions" in messages["chatmemory.E014"]


@pytest.mark.regression
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("openapi:gpt-5", "Did you mean openai?"),
        ("antropic:claude-5", "Did you mean anthropic?"),
        ("nobody:gpt-5", "LangChain has no provider 'nobody'"),
        ("os.path", "os.path is a module"),
        ("tests.responders_for_tests.ecko", "Did you mean echo?"),
        ("tests.programs.peers.mem0", "tests.programs.peers.mem0 is a module"),
        ("nowhere.bot", "No module named 'nowhere'"),
        ("projcet.demo_bot.answer", "Did you mean project?"),
        ("tests.speakr.answer", "Did you mean tests.speaker?"),
        ("tests.programs.recal.responders.bot", "Did you mean tests.programs.recall?"),
        ("openai:", "The name of the model is missing"),
        ("shop.bot:answer", "A dotted path has no colon: shop.bot.answer"),
        ("dmeo", "Did you mean demo?"),
        ("tests.nowhere.bot", "No module named 'tests.nowhere'"),
        ("echo", "Use demo, a model string"),
        (".bot", "Use demo, a model string"),
        (5, "Use demo, a model string"),
    ],
)
def test_a_responder_that_does_not_exist_is_reported_with_a_hint(name, hint):
    sys.modules.pop("tests.programs.peers.mem0", None)
    assert hint in found(CHATMEMORY={"RESPONDER": name})["chatmemory.E008"]


BOTS = {"__init__": "given = dict", "extra": "", "lazy": "def __getattr__(name): return dict"}
"""The modules of a host's package."""


@pytest.fixture
def bots(tmp_path, monkeypatch):
    """Return the name of a package that is not loaded; its module `compiled` has no source."""
    name = f"bots_{uuid4().hex}"
    folder = tmp_path / name
    folder.mkdir()
    for module, source in BOTS.items():
        (folder / f"{module}.py").write_text(source)
    py_compile.compile(str(folder / "__init__.py"), cfile=str(folder / "compiled.pyc"))
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


@pytest.mark.regression
@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("name", ["given", "lazy.bot", "compiled.given"])
def test_a_responder_that_its_package_can_contain_passes(bots, name, is_loaded):
    path = f"{bots}.{name}"
    if is_loaded:
        import_module(path.rpartition(".")[0])
    assert found(CHATMEMORY={"RESPONDER": path}) == {}


@pytest.mark.regression
@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gven", "Did you mean given?"),
        ("extra", "extra is a module; name the responder in it."),
        ("extra.deeper.bot", "No module named "),
        ("nowhere.bot", "No module named "),
    ],
)
def test_a_responder_that_its_package_does_not_contain_is_reported(bots, name, hint, is_loaded):
    if is_loaded:
        import_module(bots)
    assert hint in found(CHATMEMORY={"RESPONDER": f"{bots}.{name}"})["chatmemory.E008"]


@pytest.mark.regression
def test_a_provider_whose_package_is_missing_is_a_warning():
    messages = found(CHATMEMORY={"RESPONDER": "anthropic:claude-5"})
    assert list(messages) == ["chatmemory.W016"]
    assert "pip install langchain-anthropic" in messages["chatmemory.W016"]


@pytest.mark.regression
def test_a_model_string_without_langchain_is_reported_with_the_package_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "langchain", None)  # as if it were not installed
    hint = 'Model strings need LangChain: pip install "django-chatmemory[models]".'
    assert hint in found(CHATMEMORY={"RESPONDER": "openai:gpt-5"})["chatmemory.E008"]


@pytest.mark.regression
def test_a_langchain_whose_providers_cannot_be_parsed_passes(monkeypatch, tmp_path):
    (tmp_path / "__init__.py").touch()
    spec = spec_from_file_location("langchain", tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "langchain", module_from_spec(spec))
    assert provider_packages() == {}
    assert found(CHATMEMORY={"RESPONDER": "new-provider:model-1"}) == {}


def test_the_parsed_providers_are_those_of_langchain():
    known = {name: entry[0].partition(".")[0] for name, entry in _BUILTIN_PROVIDERS.items()}
    assert provider_packages() == known


@pytest.fixture
def environment(monkeypatch):
    """Remove the variables of tracing, and clear LangSmith's cache of them."""
    for variable in TRACING_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    get_env_var.cache_clear()
    yield monkeypatch
    get_env_var.cache_clear()


@pytest.mark.regression
@pytest.mark.parametrize(
    "name",
    [
        "LANGSMITH_TRACING",
        "LANGSMITH_TRACING_V2",
        "LANGCHAIN_TRACING",
        "LANGCHAIN_TRACING_V2",
    ],
)
def test_tracing_by_langsmith_is_a_warning(environment, name):
    environment.setenv(name, "true")
    assert tracing_is_enabled()
    assert f"{name} is set" in found()["chatmemory.W017"]
    environment.setenv(name, "false")
    assert found() == {}


def test_django_runs_all_checks():
    modules = [
        import_module(f"chatmemory.checks.{name}") for name in ("deployment", "project", "values")
    ]
    defined = {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("check_") and value.__module__ == module.__name__
    }
    assert len(defined) > 10
    assert defined <= set(registry.get_checks(include_deployment_checks=True))
