"""Search and recall: messages by their words, in old chats too. See docs/howto/search.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chatmemory.search.searching import asearch_messages, search_messages
    from chatmemory.search.values import Hit, SearchPage

_MODULES = {
    "Hit": "values",
    "SearchPage": "values",
    "asearch_messages": "searching",
    "search_messages": "searching",
}

__all__ = ["Hit", "SearchPage", "asearch_messages", "search_messages"]


def __getattr__(name: str) -> Any:
    # Not above: Django imports the package of an app before it loads the models.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
