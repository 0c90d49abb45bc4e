"""Our own stores in any process: Django must be set up before they are imported."""

from __future__ import annotations

from importlib import import_module

import django
from django.apps import apps

from chatmemory.testing.stores import Store


def prepare() -> None:
    """Import what takes long, before the workers part."""
    django.setup()
    import_module("tests.memories")


def ours(kind: str) -> Store:
    """The store of this name in `tests.memories`."""
    if not apps.ready:  # in a worker that nothing prepared
        prepare()
    store: Store = getattr(import_module("tests.memories"), kind)()
    return store
