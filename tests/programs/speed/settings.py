"""The Django settings of the benchmark's processes. `CHATMEMORY_BENCH` has the rest as JSON.

They are not the project's, so that figures of two versions can be compared.
"""

from __future__ import annotations

import json
import os

_given = json.loads(os.environ["CHATMEMORY_BENCH"])

SECRET_KEY = _given["secret_key"]
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "channels",
    "chatmemory",
]
DATABASES = {"default": _given["database"]}
if _redis := os.environ.get("CHATMEMORY_BENCH_REDIS"):
    _layer = {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [_redis], "prefix": "chatmemory_bench"},
    }
else:
    _layer = {"BACKEND": "channels.layers.InMemoryChannelLayer"}
CHANNEL_LAYERS = {"default": _layer}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
CHATMEMORY = {
    "RESPONDER": "tests.programs.speed.responder.answer",
    "WINDOW_TOKENS": 4_000,
    "SENDS_PER_MINUTE": None,
    "READS_PER_MINUTE": None,
    "WRITES_PER_MINUTE": None,
    "CONNECTIONS_PER_USER": None,
    "TURNS_PER_USER": None,
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"chatmemory": {"handlers": ["console"], "level": "WARNING"}},
}
