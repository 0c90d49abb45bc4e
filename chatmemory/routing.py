"""The route of the chat socket, for a project's websocket router.

A server that imports it also imports the responder, which takes seconds for some models.
"""

from __future__ import annotations

from django.urls import re_path

from chatmemory import startup
from chatmemory.consumers import ChatConsumer
from chatmemory.live.preload import preload
from chatmemory.live.standby import standby

# Any key matches: an invalid one gets the same answer as an unknown one.
websocket_urlpatterns = [re_path(r"^ws/chat/(?P<key>(?s:.+))/$", ChatConsumer.as_asgi())]

if startup.is_serving():
    preload()
    if not startup.is_testing():
        standby.start()
