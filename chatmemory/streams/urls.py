"""The URLs of the streams. The host project includes them under any prefix, such as that of REST.

Each is valid with and without a slash at its end: foreign clients send none, and APPEND_SLASH would
redirect a POST, which loses its body.
"""

from __future__ import annotations

from django.urls import re_path

from chatmemory.streams.ag_ui import views as ag_ui
from chatmemory.streams.ai_sdk import views as ai_sdk
from chatmemory.streams.events import Events

app_name = "chatmemory_streams"

CHAT = r"(?P<chat>[^/]+)"

urlpatterns = [
    re_path(r"^ui/chat/?\Z", ai_sdk.Chat.as_view(), name="chat"),
    re_path(rf"^ui/chat/{CHAT}/stream/?\Z", ai_sdk.ChatStream.as_view(), name="resume"),
    re_path(rf"^ui/chat/{CHAT}/stop/?\Z", ai_sdk.ChatStop.as_view(), name="stop"),
    re_path(rf"^ui/chat/{CHAT}/messages/?\Z", ai_sdk.ChatMessages.as_view(), name="messages"),
    re_path(rf"^ui/events/{CHAT}/?\Z", Events.as_view(), name="events"),
    re_path(r"^ui/ag/?\Z", ag_ui.Runs.as_view(), name="runs"),
]
