"""Build Django settings from URLs: a database, a cache and a channel layer."""

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
        # Without IMMEDIATE, a transaction that reads and then writes beside another writer fails
        # immediately, without waiting for the timeout.
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

    An empty URL selects a SQLite file in `var`. `sqlite:///name` is a relative path,
    `sqlite:////name` an absolute one. Raises ImproperlyConfigured for an unknown scheme.
    """
    parts = urlsplit(url or f"sqlite:///{var / 'db.sqlite3'}")
    if parts.scheme not in BACKENDS:
        raise ImproperlyConfigured(f"DATABASE_URL has the unknown scheme {parts.scheme!r}.")
    name = unquote(parts.path.removeprefix("/"))
    if parts.scheme == "sqlite":
        # A file, not memory: tests open the database from threads and other processes.
        return deepcopy(SQLITE) | {"NAME": name, "TEST": {"NAME": str(var / "test.sqlite3")}}
    return deepcopy(BACKENDS[parts.scheme]) | {
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


def channel_layers(url: str) -> dict[str, Any]:
    """Return `CHANNEL_LAYERS`: Redis at `url`; if it is empty, a layer for a single process."""
    if not url:
        return {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    # redis-py 8 has a read timeout of 5 s by default, which would end an idle subscription
    # (https://github.com/django/channels_redis/issues/422).
    host = {"address": url, "socket_timeout": None}
    return {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [host]},
        }
    }


def caches(url: str) -> dict[str, Any]:
    """Return `CACHES`: Redis at `url`; if it is empty, the memory of this process."""
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
    """Return the secret key that is stored in `var`; the first call creates it."""
    file = var / "secret_key"
    if not file.exists():
        draft = var / f"secret_key.{secrets.token_hex(8)}"
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(48))
        try:
            os.link(draft, file)  # atomic: concurrent first starts all read one complete key
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return file.read_text()
