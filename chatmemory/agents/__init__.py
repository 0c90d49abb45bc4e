"""A session for OpenAI's Agents SDK, over the conversations of the core.

Importing this package imports the SDK, which takes over a second; no other module imports it.
"""

from __future__ import annotations

from chatmemory.agents.session import DjangoSession

__all__ = ["DjangoSession"]
