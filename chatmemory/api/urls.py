"""The URLs of the API. The host project includes them under any prefix."""

from __future__ import annotations

from django.urls import path

from chatmemory.api import messages, sessions, tickets

app_name = "chatmemory_api"

urlpatterns = [
    path("sessions/", sessions.SessionList.as_view(), name="sessions"),
    path("sessions/<key>/", sessions.SessionDetail.as_view(), name="session"),
    path("sessions/<key>/messages/", messages.MessageList.as_view(), name="messages"),
    path("tickets/", tickets.TicketList.as_view(), name="tickets"),
    path("sessions/<key>/messages/<int:seq>/", messages.MessageDetail.as_view(), name="message"),
    path(
        "sessions/<key>/messages/<int:seq>/versions/",
        messages.VersionList.as_view(),
        name="versions",
    ),
]
