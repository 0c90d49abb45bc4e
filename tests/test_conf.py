"""Settings: each has a default and is read at each access."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import override_settings

from chatmemory.conf import Duration, Setting, Settings, settings

DEFAULTS: dict[str, object] = {
    "RESPONDER": "demo",
    "INSTRUCTIONS": "",
    "INSTRUCTIONS_FOR": None,
    "NEW_SESSION": None,
    "METADATA_FILTERS": (),
    "BEFORE_SEND": None,
    "TITLE": None,
    "SUGGESTIONS": (),
    "WINDOW_TOKENS": 8_000,
    "WINDOW_MESSAGES": None,
    "WINDOW_JOIN": False,
    "WINDOW_SYSTEM_FIRST": False,
    "TOKEN_COUNTER": "approximate",
    "MEDIA_TOKENS": 1_000,
    "MAX_MESSAGE_CHARS": 32_000,
    "MAX_REPLY_CHARS": 1_000_000,
    "MAX_MESSAGE_BYTES": 8_000_000,
    "BUSY_POLICY": "queue",
    "QUEUE_DEPTH": 5,
    "TURN_TIMEOUT": 300,
    "LEASE": 15,
    "DRAIN": 8,
    "SESSION_TTL": None,
    "RETENTION": [],
    "UNDO_DAYS": 30,
    "USER_DELETED": "purge",
    "TRANSCRIPTS": "normal",
    "AUDIT_KEY": "",
    "AUDIT_KEY_FALLBACKS": [],
    "ERASURE_LIST": None,
    "ALLOWED_ORIGINS": None,
    "SOCKET_AUTH": None,
    "API_AUTHENTICATION": [],
    "HEALTH_TOKEN": "",
    "VALID_LOGINS": None,
    "GATE": None,
    "IMPERSONATOR": None,
    "REACH": None,
    "ALLOW_ANONYMOUS": False,
    "VISITOR_DAYS": 30,
    "VISITOR_MAX_DAYS": 90,
    "VISITOR_ADOPT": "ask",
    "VISITORS_PER_HOUR": 30,
    "VISITORS_PER_MINUTE": 300,
    "VISITOR_SENDS_PER_MINUTE": 60,
    "VISITOR_TOKENS_PER_DAY": None,
    "EMBEDS": {},
    "EMBED_DAYS": 7,
    "EMBED_VISITORS_PER_MINUTE": 100,
    "TRUSTED_PROXIES": (),
    "SELF_SERVICE": ("export",),
    "READS_PER_MINUTE": 300,
    "WRITES_PER_MINUTE": 60,
    "TOKENS_PER_DAY": None,
    "MAX_SESSIONS_PER_USER": 1_000,
    "TURNS_PER_USER": 3,
    "WAITS_PER_USER": 5,
    "WAITS_PER_PROCESS": 100,
    "CONNECTIONS_PER_USER": 5,
    "CONNECTION_AGE": 43_200,
    "DB_THREADS": 4,
    "PREPARED_STATEMENTS": None,
    "LOCK_TIMEOUT": 2,
    "IMAGE_ORIGINS": (),
    "ASSET_ORIGINS": (),
    "LOGOUT_URL": None,
    "SENDS_PER_MINUTE": 30,
    # Of the optional app chatmemory.search
    "SEARCH_LANGUAGE": "english",
    "SEARCHES_PER_MINUTE": 30,
    "RECALL_TOKENS": 0,
    "RECALL_REACH": "session",
}
DURATIONS = [name for name, setting in vars(Settings).items() if isinstance(setting, Duration)]


@override_settings(CHATMEMORY={})
@pytest.mark.parametrize("name", DEFAULTS)
def test_each_setting_has_its_default(name):
    assert getattr(settings, name) == DEFAULTS[name]


def test_the_default_of_each_setting_is_tested():
    assert [n for n, value in vars(Settings).items() if isinstance(value, Setting)] == [*DEFAULTS]


def test_a_project_without_the_dictionary_has_the_defaults(settings):
    del settings.CHATMEMORY
    assert DEFAULTS["LEASE"] == Settings().LEASE


def test_settings_are_read_at_each_access():
    with override_settings(CHATMEMORY={"MAX_MESSAGE_CHARS": 5}):
        assert settings.MAX_MESSAGE_CHARS == 5
        assert DEFAULTS["WINDOW_TOKENS"] == settings.WINDOW_TOKENS
    with override_settings(CHATMEMORY={"WINDOW_TOKENS": None}):
        assert settings.WINDOW_TOKENS is None


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [1.5, timedelta(seconds=1, milliseconds=500)])
def test_a_duration_is_seconds_or_a_timedelta(name, value):
    with override_settings(CHATMEMORY={name: value, "SESSION_TTL": value}):
        assert getattr(settings, name) == settings.SESSION_TTL == 1.5


@pytest.mark.parametrize(
    ("value", "error"),
    [("90", "'90' is a string"), ("soon", "is a string"), (None, "float"), ([1], "float")],
)
def test_an_invalid_duration_raises_when_it_is_read(value, error):
    with override_settings(CHATMEMORY={"LEASE": value}), pytest.raises(ValueError, match=error):
        _ = settings.LEASE


def test_an_attribute_of_the_class_is_the_setting_itself():
    assert isinstance(Settings.LEASE, Setting)
    assert Settings.LEASE.default == DEFAULTS["LEASE"]
