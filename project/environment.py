"""From the environment to Django's settings: a database, a cache and a channel layer by URL."""

from __future__ import annotations

import os
import secrets
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

SQLITE: dict[str, Any] = {
    "ENGINE": "django.db.backends.sqlite3",
    "OPTIONS": {
        # Without IMMEDIATE, writers that meet fail at once, whatever the timeout says.
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL",
        "timeout": 20,
    },
}
POSTGRESQL: dict[str, Any] = {
    "ENGINE": "django.db.backends.postgresql",
    # CHATMEMORY["DB_THREADS"] for sockets and runs, the rest for requests; for each process.
    "OPTIONS": {"pool": {"min_size": 1, "max_size": 10, "timeout": 10}},
}
MARIADB: dict[str, Any] = {
    "ENGINE": "django.db.backends.mysql",
    "OPTIONS": {"charset": "utf8mb4", "init_command": "SET sql_mode = 'STRICT_TRANS_TABLES'"},
    "TEST": {"CHARSET": "utf8mb4"},
}
BACKENDS = {
    "sqlite": SQLITE,
    "postgres": POSTGRESQL,
    "postgresql": POSTGRESQL,
    "mysql": MARIADB,
    "mariadb": MARIADB,
}


def database(url: str, var: Path) -> dict[str, Any]:
    """Return the entry of `DATABASES` for `scheme://user:password@host:port/name`.

    No URL is a SQLite file in `var`; `sqlite:///name` is relative, `sqlite:////name` absolute.
    """
    parts = urlsplit(url or f"sqlite:///{var / 'db.sqlite3'}")
    if parts.scheme not in BACKENDS:
        raise ImproperlyConfigured(f"DATABASE_URL: no database is known as {parts.scheme!r}.")
    name = unquote(parts.path.removeprefix("/"))
    if parts.scheme == "sqlite":
        # Tests open it from threads and other processes, so it isn't in memory.
        return deepcopy(SQLITE) | {"NAME": name, "TEST": {"NAME": str(var / "test.sqlite3")}}
    return deepcopy(BACKENDS[parts.scheme]) | {
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


def channel_layers(url: str) -> dict[str, Any]:
    """Return `CHANNEL_LAYERS`: Redis at `url`, or without one a layer for a single process."""
    if not url:
        return {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    # redis-py 8 gives up reading after 5 s by default: an idle subscription would die of it
    # (https://github.com/django/channels_redis/issues/422).
    host = {"address": url, "socket_timeout": None}
    return {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [host]},
        }
    }


def caches(url: str) -> dict[str, Any]:
    """Return `CACHES`: Redis at `url`, or without one this process's memory."""
    if not url:
        return {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    return {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": url,
            "OPTIONS": {"socket_connect_timeout": 1, "socket_timeout": 1},
        }
    }


def secret_key(var: Path) -> str:
    """Return the key kept in `var`, made at the first call."""
    file = var / "secret_key"
    if not file.exists():
        draft = var / f"secret_key.{secrets.token_hex(8)}"
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(48))
        try:
            os.link(draft, file)  # of two processes that start at once, one wins, whole
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return file.read_text()
