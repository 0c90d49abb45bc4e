"""A session for OpenAI's Agents SDK, over the conversations of the core.

Importing this package imports the SDK, which takes over a second; no other module imports it.
"""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

try:
    from chatmemory.agents.session import DjangoSession
except ModuleNotFoundError as error:
    if error.name != "agents":
        raise
    advice = 'pip install "django-chatmemory[agents]"'
    raise ImproperlyConfigured(f"chatmemory.agents needs openai-agents: {advice}.") from error

__all__ = ["DjangoSession"]
