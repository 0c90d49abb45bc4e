"""The route of the chat socket, and a router that knows the URL prefix of the project.

A server that imports it also imports the responder, which takes seconds for some models.
"""

from __future__ import annotations

from typing import Any

from channels.routing import URLRouter
from django.core.handlers.asgi import get_script_prefix
from django.urls import re_path

from chatmemory import startup
from chatmemory.consumers import ChatConsumer
from chatmemory.live.preload import preload
from chatmemory.live.standby import standby

# Any key matches: an invalid one gets the same answer as an unknown one.
websocket_urlpatterns = [re_path(r"^ws/chat/(?P<key>(?s:.+))/$", ChatConsumer.as_asgi())]


class SocketRouter(URLRouter):  # type: ignore[misc]  # Channels has no types
    """Routes a websocket as Django routes a request: below the project's URL prefix.

    `URLRouter` ignores FORCE_SCRIPT_NAME, and refuses a root path that the proxy has stripped.
    """

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix(get_script_prefix(scope))
        await super().__call__({**scope, "path_remaining": path}, receive, send)


if startup.is_serving():
    preload()
    if not startup.is_testing():
        standby.start()
