"""The route of the chat socket, for a project's websocket router."""

from __future__ import annotations

from django.urls import re_path

from chatmemory.consumers import ChatConsumer

# Any key matches: an invalid one gets the same answer as an unknown one.
websocket_urlpatterns = [re_path(r"^ws/chat/(?P<key>(?s:.+))/$", ChatConsumer.as_asgi())]
