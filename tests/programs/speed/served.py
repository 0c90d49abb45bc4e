"""The applications of the benchmark's servers, at /ws/chat/, /ws/plain/ and /ws/stock/."""

from __future__ import annotations

import json
from contextlib import ExitStack

import django
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, Scope

django.setup()

from channels.auth import AuthMiddlewareStack  # noqa: E402  # models need django.setup()
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402  # as above
from django.urls import re_path  # noqa: E402  # as above

from chatmemory.consumers import ChatConsumer  # noqa: E402  # as above
from chatmemory.consumers.limits import SocketLimits  # noqa: E402  # as above
from chatmemory.live.drain import drain  # noqa: E402  # as above
from chatmemory.routing import websocket_urlpatterns  # noqa: E402  # as above
from tests.programs.speed.counting import Counts, counted  # noqa: E402  # as above
from tests.programs.speed.plain import PlainConsumer, StockConsumer  # noqa: E402  # as above
from tests.programs.speed.sockets import IDLE_SECONDS  # noqa: E402  # as above

# A turn takes milliseconds, so one after another is faster than a person may send.
ChatConsumer.limits = SocketLimits(burst=1_000_000, pong_seconds=IDLE_SECONDS)

_counting = ExitStack()
_counts = Counts()


async def count(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Begin to count at /on; stop and return the counts at /off. Counting costs time."""
    global _counts
    if scope["type"] == "http" and scope["path"] == "/on":
        _counts = _counting.enter_context(counted())
    else:
        _counting.close()
    headers = [(b"content-type", b"application/json")]
    await send(
        {"type": "http.response.start", "status": 200, "headers": headers, "trailers": False}
    )
    body = json.dumps(_counts).encode()
    await send({"type": "http.response.body", "body": body, "more_body": False})


others = URLRouter(
    [
        re_path(r"^ws/plain/(?P<key>[^/]+)/$", PlainConsumer.as_asgi()),
        re_path(r"^ws/stock/(?P<key>[^/]+)/$", StockConsumer.as_asgi()),
    ]
)
application = ProtocolTypeRouter(
    {
        "http": count,
        "lifespan": drain.lifespan,
        "websocket": URLRouter(
            [
                *websocket_urlpatterns,
                re_path("", AuthMiddlewareStack(others)),
            ]
        ),
    }
)
