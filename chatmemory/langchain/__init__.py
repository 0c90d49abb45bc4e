"""A history class for LangChain, and a wrapper that stores each turn.

Importing this package imports LangChain, which takes over a second; no module that Django loads
at start-up imports it.
"""

from __future__ import annotations

from chatmemory.langchain.history import DjangoChatMessageHistory
from chatmemory.langchain.memory import with_memory
from chatmemory.langchain.messages import to_langchain, to_plain

__all__ = ["DjangoChatMessageHistory", "to_langchain", "to_plain", "with_memory"]
