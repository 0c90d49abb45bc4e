"""Create our own stores in any process. Django must be set up before they are imported."""

from __future__ import annotations

from importlib import import_module

import django
from django.apps import apps

from chatmemory.testing.stores import Store


def prepare() -> None:
    """Import slow modules before the workers are forked."""
    django.setup()
    import_module("tests.memories")


def ours(kind: str) -> Store:
    """Make the store of this name in `tests.memories`."""
    if not apps.ready:  # a worker without `prepare`
        prepare()
    store: Store = getattr(import_module("tests.memories"), kind)()
    return store
