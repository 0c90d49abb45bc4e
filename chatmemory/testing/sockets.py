"""Chat sockets without a server, for the tests of your project."""

from __future__ import annotations

from typing import Any

from django.test import AsyncClient, Client

from chatmemory.conf import settings
from chatmemory.protocol import VERSION

try:
    from channels.testing.websocket import WebsocketCommunicator
except ModuleNotFoundError as error:
    raise ImportError(
        f'channels.testing needs Daphne: pip install "django-chatmemory[daphne]" ({error})'
    ) from error

HOST = "testserver"
"""The host of Django's test client, which ALLOWED_HOSTS contains during tests."""


def chat_communicator(
    application: Any, path: str, *, client: Client | AsyncClient | None = None
) -> WebsocketCommunicator:
    """Prepare a websocket with the headers of a page that `client` has open.

    `application` is the project's ASGI application, `client` a test client that is signed in.
    The headers are Host, Origin and Cookie; the subprotocol is `chatmemory.v1`.
    """
    origin = (settings.ALLOWED_ORIGINS or [f"http://{HOST}"])[0]
    headers = [(b"host", HOST.encode()), (b"origin", origin.encode())]
    if client is not None:
        cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
        headers.append((b"cookie", cookies.encode()))
    return WebsocketCommunicator(
        application, path, headers=headers, subprotocols=[f"chatmemory.v{VERSION}"]
    )
