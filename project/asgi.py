"""HTTP and websockets: `uvicorn project.asgi:application`, or `manage.py runserver`."""

from __future__ import annotations

import os

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, Scope, WebSocketCloseEvent
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.urls import re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
http = get_asgi_application()

from chatmemory.drain import drain  # noqa: E402  # as above
from chatmemory.routing import websocket_urlpatterns  # noqa: E402  # models need django.setup()


async def not_found(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Refuse a websocket at an unknown address, where `URLRouter` raises."""
    await receive()
    await send(WebSocketCloseEvent(type="websocket.close", code=4404, reason=None))


unknown = re_path("", not_found)  # type: ignore[arg-type]  # Channels routes to ASGI applications

# Who may connect from where is the consumer's own check (`CHATMEMORY["ALLOWED_ORIGINS"]`).
application = ProtocolTypeRouter(
    {
        "http": ASGIStaticFilesHandler(http) if settings.DEBUG else http,
        "lifespan": drain.lifespan,
        "websocket": AuthMiddlewareStack(URLRouter([*websocket_urlpatterns, unknown])),
    }
)
