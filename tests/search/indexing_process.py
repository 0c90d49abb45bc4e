"""Index all sessions, in processes that are killed: see tests/killed.py."""

from __future__ import annotations

from importlib import import_module

import django

from tests.killed import serve

if __name__ == "__main__":
    django.setup()
    serve(import_module("chatmemory.search.indexing").index_all)
