"""The URLs of the API. The host project includes them under any prefix."""

from __future__ import annotations

from django.urls import path

from chatmemory.api import views

app_name = "chatmemory_api"

urlpatterns = [
    path("sessions/", views.SessionList.as_view(), name="sessions"),
    path("sessions/<key>/", views.SessionDetail.as_view(), name="session"),
    path("sessions/<key>/messages/", views.MessageList.as_view(), name="messages"),
    path("tickets/", views.TicketList.as_view(), name="tickets"),
    path("sessions/<key>/messages/<int:seq>/", views.MessageDetail.as_view(), name="message"),
    path(
        "sessions/<key>/messages/<int:seq>/versions/",
        views.VersionList.as_view(),
        name="versions",
    ),
]
