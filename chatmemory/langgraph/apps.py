"""The Django app."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:  # it imports models, which Django loads later
    from chatmemory.responders import Request


class LangGraphConfig(AppConfig):
    """Registers what the core calls: the actions of the audit and the permission."""

    name = "chatmemory.langgraph"
    label = "chatmemory_langgraph"
    verbose_name = _("Threads of LangGraph")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        if find_spec("langgraph") is None:
            advice = 'pip install "django-chatmemory[langgraph]", or remove it from INSTALLED_APPS'
            raise ImproperlyConfigured(f"chatmemory.langgraph needs langgraph: {advice}.")
        # These import models, which Django loads before it calls this.
        from chatmemory.derived import at_turn_end
        from chatmemory.langgraph.actions import ThreadAction
        from chatmemory.langgraph.state import LEFT, store_left
        from chatmemory.management.roles import extend_role
        from chatmemory.responders.values import before_graph
        from chatmemory.services.audit.actions import register_audit_action

        for action in ThreadAction:
            register_audit_action(action)
        for role in ("Chat lead", "Chat data protection"):
            extend_role(role, "chatmemory_langgraph.view_thread")
        before_graph.append(_prepare)
        at_turn_end(store_left, left=LEFT)


async def _prepare(graph: Any, request: Request) -> tuple[Any, Request]:
    # Not imported above: LangGraph takes over a second, and is loaded if there is a graph.
    from chatmemory.langgraph.runs import prepare

    return await prepare(graph, request)
