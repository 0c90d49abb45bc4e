"""The address of the chat socket, to mount in a project's websocket router."""

from __future__ import annotations

from django.urls import re_path

from chatmemory.consumers import ChatConsumer

# Any key is taken: what can't be one is answered like one that isn't there.
websocket_urlpatterns = [re_path(r"^ws/chat/(?P<key>(?s:.+))/$", ChatConsumer.as_asgi())]
