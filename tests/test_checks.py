"""Checks: a wrong setting is named, with what to do; the right ones pass in silence."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from django.conf import settings as django_settings
from django.core.checks import run_checks
from django.test import override_settings
from langchain.chat_models.base import _BUILTIN_PROVIDERS
from langsmith.utils import get_env_var, tracing_is_enabled

from chatmemory.checks import (
    TRACING_VARIABLES,
    _provider_packages,
    check_atomic_requests,
    check_deployment,
    check_pool,
    check_sqlite,
)

PUBSUB = "channels_redis.pubsub.RedisPubSubChannelLayer"
MEMORY = "channels.layers.InMemoryChannelLayer"
EVIDENCE = {"AUDIT_KEY": "k" * 50, "ERASURE_LIST": "/var/lib/erasures.jsonl"}


def found(*, deploy=False, **changed):
    """The ids and messages of this app's checks under these settings."""
    with override_settings(**changed):
        messages = run_checks(include_deployment_checks=deploy)
    return {str(m.id): f"{m.msg} {m.hint}" for m in messages if str(m.id).startswith("chatmemory.")}


def layer(backend=PUBSUB, **config):
    return {"CHANNEL_LAYERS": {"default": {"BACKEND": backend, "CONFIG": config}}}


@pytest.mark.parametrize(
    "right",
    [
        {},
        {"WINDOW_TOKENS": None, "WINDOW_MESSAGES": 1, "SENDS_PER_MINUTE": None},
        {"DRAIN": 0, "DB_THREADS": 0, "LEASE": 5, "TURN_TIMEOUT": timedelta(minutes=1)},
        {"TOKEN_COUNTER": "tests.test_checks.found"},
        {"SESSION_TTL": timedelta(days=1), "UNDO_DAYS": 0, "USER_DELETED": "keep"},
        {"RETENTION": [{"tag": "kept"}, {"max_age": timedelta(days=1), "max_messages": 9}]},
        {"RESPONDER": "tests.responders_for_tests.echo"},
        {"ERASURE_LIST": Path("/var/lib/erasures.jsonl")},
        {"ERASURE_LIST": "tests.test_erasure_list.Shelf"},
        {"RESPONDER": "openai:gpt-5"},
        {"ALLOWED_ORIGINS": ["https://example.org", "http://127.0.0.1:8000"]},
    ],
)
def test_right_settings_pass(right):
    assert found(CHATMEMORY=right) == {}


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
        ({"DB_THREADS": -1}, "E002", "DB_THREADS"),
        ({"SENDS_PER_MINUTE": True}, "E002", "SENDS_PER_MINUTE"),
        ({"LEASE": 0}, "E003", "above 0"),
        ({"LEASE": float("inf")}, "E003", "LEASE"),
        ({"LEASE": float("nan")}, "E003", "LEASE"),
        ({"DRAIN": -1}, "E003", "from 0 on"),
        ({"DRAIN": None}, "E003", "DRAIN"),
        ({"TURN_TIMEOUT": "soon"}, "E003", "TURN_TIMEOUT"),
        ({"LOCK_TIMEOUT": None}, "E003", "LOCK_TIMEOUT"),
        ({"LEASE": timedelta(seconds=-1)}, "E003", "LEASE"),
        ({"SESSION_TTL": 0}, "E003", "SESSION_TTL"),
        ({"UNDO_DAYS": None}, "E002", "UNDO_DAYS"),
        ({"QUEUE_DEPTH": 0}, "E002", "QUEUE_DEPTH"),
        ({"QUEUE_DEPTH": None}, "E002", "QUEUE_DEPTH"),
        ({"BUSY_POLICY": "wait"}, "E011", "queue, reject, interrupt"),
        ({"BUSY_POLICY": None}, "E011", "BUSY_POLICY"),
        ({"RETENTION": {"max_age": 5}}, "E009", "list"),
        ({"RETENTION": [{}]}, "E009", "[0]"),
        ({"RETENTION": [{"tag": "a"}, {"age": 5}]}, "E009", "[1]: unknown 'age'"),
        ({"RETENTION": [{"max_age": "soon"}]}, "E009", "[0]"),
        ({"RETENTION": [{"max_idle": -5}]}, "E009", "above 0"),
        ({"RETENTION": [{"max_idle": 0}]}, "E009", "above 0"),
        ({"RETENTION": [{"max_age": float("nan")}]}, "E009", "above 0"),
        ({"RETENTION": [{"max_idle": 1e300}]}, "E009", "100 years"),
        ({"RETENTION": [{"max_messages": 0}]}, "E009", "max_messages"),
        ({"RETENTION": [{"tag": ["a"]}]}, "E009", "tag"),
        ({"RETENTION": [{"max_age": 5}, {"tag": "kept"}]}, "E009", "[1] never applies"),
        ({"USER_DELETED": "forget"}, "E010", "keep"),
        ({"ALLOWED_ORIGINS": "https://example.org"}, "E007", "list"),
        ({"ALLOWED_ORIGINS": ["example.org"]}, "E007", "'example.org'"),
        ({"ALLOWED_ORIGINS": ["https://example.org/chat"]}, "E007", "/chat"),
        ({"ALLOWED_ORIGINS": ["*"]}, "E007", "'*'"),
        ({"RESPONDER": "nonsense"}, "E008", "provider:model"),
        ({"RESPONDER": "nowhere.bot"}, "E008", "nowhere.bot"),
        ({"RESPONDER": "tests.test_checks.fund"}, "E008", "fund"),
        ({"RESPONDER": "__main__.bot"}, "E008", "__main__"),
        ({"RESPONDER": ".bot"}, "E008", "'.bot'"),
        ({"RESPONDER": None}, "E008", "None"),
        ({"TOKEN_COUNTER": "nowhere.count"}, "E004", "nowhere.count"),
        ({"TOKEN_COUNTER": "tests.test_checks.PUBSUB"}, "E004", "PUBSUB"),
        ({"SOCKET_AUTH": "nowhere.sign_in"}, "E004", "SOCKET_AUTH"),
        ({"REACH": 5}, "E004", "REACH"),
        ({"VALID_LOGINS": "nowhere.valid"}, "E004", "VALID_LOGINS"),
        ({"ERASURE_LIST": "erasures.jsonl"}, "E004", "absolute path"),
        ({"ERASURE_LIST": 5}, "E004", "ERASURE_LIST"),
        ({"AUDIT_KEY": None}, "E002", "AUDIT_KEY"),
        ({"AUDIT_KEY_FALLBACKS": "former"}, "E002", "AUDIT_KEY_FALLBACKS"),
        ({"AUDIT_KEY_FALLBACKS": [""]}, "E002", "list of texts"),
        ({"CONNECTIONS_PER_USER": 0}, "E002", "CONNECTIONS_PER_USER"),
        ({"CONNECTION_AGE": 0}, "E003", "CONNECTION_AGE"),
    ],
)
def test_a_wrong_setting_is_named(given, expected, word):
    messages = found(CHATMEMORY=given, deploy=expected == "E001")
    assert [one for one in messages if one != "chatmemory.W007"] == [f"chatmemory.{expected}"]
    assert word in messages[f"chatmemory.{expected}"]


@pytest.fixture
def responder(tmp_path, monkeypatch):
    """Sets RESPONDER to `bot` in a module with this source, which must not be imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def set_to(source):
        (tmp_path / "unloaded_bots.py").write_text(f"{source}\n")
        messages = found(CHATMEMORY={"RESPONDER": "unloaded_bots.bot"})
        assert "unloaded_bots" not in sys.modules
        return messages

    return set_to


@pytest.mark.parametrize(
    "source",
    [
        "async def bot(messages, session): yield 'hi'",
        "class bot: pass",
        "prompt, *bot = [], 1",
        "bot: object = 1",
        "import nowhere.bots as bot",
        "from nowhere import bot",
        "try:\n    import nowhere\nexcept ImportError:\n    bot = 1",
        "def make():\n    global bot\n    bot = 1",
        "from nowhere import *",
        "def __getattr__(name): return 1",
        "globals()['b' + 'ot'] = 1",
    ],
)
def test_a_responder_that_its_module_may_make_passes(responder, source):
    assert responder(source) == {}


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def boot(): return bot",
        "def make():\n    bot = 1",
        "class Bots:\n    bot = 1",
        "import nowhere.bot",
        "bots.bot = 1",
        "def bot(:",
        "bot = '\0'",
    ],
)
def test_a_responder_that_its_module_does_not_make_is_named(responder, source):
    assert "unloaded_bots.bot" in responder(source)["chatmemory.E008"]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (layer("nowhere.Layer"), "nowhere"),
        (layer(MEMORY, wrong=1), "wrong"),
        ({"CHANNEL_LAYERS": {"default": {"CONFIG": {}}}}, "BACKEND"),
        (layer("tests.layers.PickyLayer"), "KeyError: 'host'"),
    ],
)
def test_a_channel_layer_that_can_not_be_built_is_shown_with_its_error(wrong, word):
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
def test_a_redis_layer_that_gives_up_after_5_seconds_is_refused(hosts):
    assert "socket_timeout" in found(**layer(hosts=hosts))["chatmemory.E006"]


@pytest.mark.parametrize(
    "right",
    [
        layer(hosts=[{"address": "redis://127.0.0.1", "socket_timeout": None}]),
        layer(hosts=[{"address": "redis://127.0.0.1", "socket_timeout": 30}]),
        {"CHANNEL_LAYERS": {}},
        layer(MEMORY),
    ],
)
def test_a_layer_that_works_passes(right):
    assert found(**right) == {}


@pytest.mark.parametrize(
    ("entry", "expected", "word"),
    [
        ({"ENGINE": "django.db.backends.sqlite3"}, "W002", "IMMEDIATE"),
        ({"ENGINE": "django.db.backends.postgresql", "ATOMIC_REQUESTS": True}, "W003", "lock"),
    ],
)
def test_a_database_that_makes_writers_wait_is_warned_of(entry, expected, word):
    check = {"W002": check_sqlite, "W003": check_atomic_requests}[expected]
    # Django warns of DATABASES that are changed while it runs, as these are not meant to be used.
    with patch.object(django_settings._wrapped, "DATABASES", {"default": entry}):
        [message] = check(None)
    assert message.id == f"chatmemory.{expected}"
    assert word in f"{message.msg} {message.hint}"


def test_a_layer_that_drops_messages_is_warned_of():
    hosts = [{"address": "redis://127.0.0.1", "socket_timeout": None}]
    messages = found(**layer("channels_redis.core.RedisChannelLayer", hosts=hosts))
    assert list(messages) == ["chatmemory.W004"]
    assert "pubsub" in messages["chatmemory.W004"]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"LEASE": 4}, "stands still"),
        ({"LEASE": 60, "TURN_TIMEOUT": 30}, "noticed"),
        ({"DRAIN": 60, "TURN_TIMEOUT": 30}, "No turn takes that long"),
    ],
)
def test_times_that_do_not_fit_together_are_warned_of(given, word):
    messages = found(CHATMEMORY=given)
    assert list(messages) == ["chatmemory.W005"]
    assert word in messages["chatmemory.W005"]


@pytest.mark.parametrize(
    ("pool", "threads", "is_right"),
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
def test_a_pool_that_threads_use_up_is_warned_of(pool, threads, is_right):
    entry = {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"pool": pool}}
    databases = patch.object(django_settings._wrapped, "DATABASES", {"default": entry})
    with databases, override_settings(CHATMEMORY={"DB_THREADS": threads}):
        assert [message.id for message in check_pool(None)] == (
            [] if is_right else ["chatmemory.W006"]
        )


def test_a_database_in_memory_is_warned_of():
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    entry["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
    with patch.object(django_settings._wrapped, "DATABASES", {"default": entry}):
        assert [message.id for message in check_sqlite(None)] == ["chatmemory.W009"]


def cached_by(backend):
    """The settings of a project with this cache of Django's."""
    return {"CACHES": {"default": {"BACKEND": f"django.core.cache.backends.{backend}"}}}


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
                "CHATMEMORY": {"SENDS_PER_MINUTE": None, "READS_PER_MINUTE": None},
            },
            [],
        ),
        (
            {
                **SHARED,
                **cached_by("locmem.LocMemCache"),
                "CHATMEMORY": {
                    "SENDS_PER_MINUTE": None,
                    "READS_PER_MINUTE": None,
                    "TOKENS_PER_DAY": 5,
                },
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
        ({**SHARED, "REST_FRAMEWORK": {"DEFAULT_AUTHENTICATION_CLASSES": []}}, ["W013"]),
        (
            {
                **SHARED,
                "CHATMEMORY": {"SOCKET_AUTH": "math.floor", "VALID_LOGINS": "math.floor"},
            },
            [],
        ),
    ],
)
def test_what_is_for_ones_own_machine_is_named_at_deployment(given, expected):
    usual = {"ALLOWED_HOSTS": ["example.org"], **cached_by("redis.RedisCache")}
    settings = {**EVIDENCE, **given.get("CHATMEMORY", {})}
    given = {**usual, **given, "CHATMEMORY": settings}
    assert list(found(deploy=True, **given)) == [f"chatmemory.{one}" for one in expected]
    assert found(**given) == {}


@pytest.mark.regression
@pytest.mark.parametrize(("missing", "warning"), [("AUDIT_KEY", "W015"), ("ERASURE_LIST", "W020")])
def test_evidence_that_would_be_lost_is_named_at_deployment(missing, warning):
    name = f"chatmemory.{warning}"
    given = {key: value for key, value in EVIDENCE.items() if key != missing}
    assert missing in found(deploy=True, CHATMEMORY=given)[name]
    assert name not in found(CHATMEMORY=given)
    assert name not in found(deploy=True, CHATMEMORY=EVIDENCE)


@pytest.mark.regression
@pytest.mark.parametrize("engine", ["sqlite3", "postgresql"])
def test_a_cache_for_each_process_is_named_where_there_may_be_several(engine):
    given = {**layer(MEMORY), **cached_by("locmem.LocMemCache"), "ALLOWED_HOSTS": ["example.org"]}
    database = {"default": {"ENGINE": f"django.db.backends.{engine}", "NAME": "x"}}
    with (
        override_settings(CHATMEMORY={}, **given),
        patch.object(django_settings._wrapped, "DATABASES", database),
    ):
        ids = {message.id for message in check_deployment(None)}
    assert ("chatmemory.W010" in ids) == (engine == "postgresql")


@pytest.mark.regression
@pytest.mark.parametrize("name", ["django_tenants", "tenant_schemas"])
def test_apps_that_choose_a_schema_for_each_request_are_refused(tmp_path, monkeypatch, name):
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
        ("nobody:gpt-5", "LangChain knows no provider 'nobody'"),
        ("os.path", "os.path is a module"),
        ("tests.responders_for_tests.ecko", "Did you mean echo?"),
        ("tests.peers.mem0", "tests.peers.mem0 is a module"),
        ("nowhere.bot", "There is no module nowhere."),
        ("tests.nowhere.bot", "There is no module tests.nowhere."),
        ("echo", "It must be demo, a model string"),
        (".bot", "It must be demo, a model string"),
        (5, "It must be demo, a model string"),
    ],
)
def test_a_responder_that_does_not_exist_is_named_with_what_to_do(name, hint):
    sys.modules.pop("tests.peers.mem0", None)
    assert hint in found(CHATMEMORY={"RESPONDER": name})["chatmemory.E008"]


@pytest.mark.regression
def test_a_provider_whose_package_is_missing_is_warned_of():
    messages = found(CHATMEMORY={"RESPONDER": "anthropic:claude-5"})
    assert list(messages) == ["chatmemory.W016"]
    assert "pip install langchain-anthropic" in messages["chatmemory.W016"]


def test_the_providers_are_those_of_langchain():
    known = {name: entry[0].partition(".")[0] for name, entry in _BUILTIN_PROVIDERS.items()}
    assert _provider_packages() == known


@pytest.fixture
def environment(monkeypatch):
    """The environment without tracing; LangSmith forgets what it read from it."""
    for variable in TRACING_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    get_env_var.cache_clear()
    yield monkeypatch
    get_env_var.cache_clear()


@pytest.mark.regression
@pytest.mark.parametrize("name", TRACING_VARIABLES)
def test_tracing_that_sends_what_users_write_to_langsmith_is_warned_of(environment, name):
    environment.setenv(name, "true")
    assert tracing_is_enabled()
    assert f"{name} is set" in found()["chatmemory.W017"]
    environment.setenv(name, "false")
    assert found() == {}
