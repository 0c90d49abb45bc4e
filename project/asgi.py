"""HTTP and websockets: `uvicorn project.asgi:application`, or `manage.py runserver`."""

from __future__ import annotations

import os

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, Scope, WebSocketCloseEvent
from channels.routing import ProtocolTypeRouter
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.urls import re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
http = get_asgi_application()

from chatmemory.live.drain import drain  # noqa: E402  # models need django.setup()
from chatmemory.routing import SocketRouter, websocket_urlpatterns  # noqa: E402


async def not_found(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Close a websocket at an unknown address, for which the router would raise."""
    await receive()
    await send(WebSocketCloseEvent(type="websocket.close", code=4404, reason=None))


unknown = re_path("", not_found)  # type: ignore[arg-type]  # Channels routes to ASGI applications

# No AllowedHostsOriginValidator: the consumer checks the Origin (`CHATMEMORY["ALLOWED_ORIGINS"]`).
# No AuthMiddlewareStack: without one, the consumer reads the user of the session's cookie itself.
application = ProtocolTypeRouter(
    {
        "http": ASGIStaticFilesHandler(http) if settings.DEBUG else http,
        "lifespan": drain.lifespan,
        "websocket": SocketRouter([*websocket_urlpatterns, unknown]),
    }
)
