"""The URLs of the API. The host project includes them under any prefix."""

from __future__ import annotations

from django.urls import path, re_path

from chatmemory.api import (
    feedback,
    health,
    messages,
    own_data,
    sessions,
    tickets,
    turns,
    unknown,
    visitors,
)

app_name = "chatmemory_api"

resources = [
    path("health/", health.Health.as_view(), name="health"),
    path("sessions/", sessions.SessionList.as_view(), name="sessions"),
    path("sessions/<key>/", sessions.SessionDetail.as_view(), name="session"),
    path("sessions/<key>/archive/", sessions.Archive.as_view(), name="archive"),
    path("sessions/<key>/unarchive/", sessions.Unarchive.as_view(), name="unarchive"),
    path("removed/", sessions.RemovedList.as_view(), name="removed"),
    path("removed/<int:undo>/restore/", sessions.Restore.as_view(), name="restore"),
    path("sessions/<key>/messages/", messages.MessageList.as_view(), name="messages"),
    path("sessions/<key>/turns/", turns.TurnList.as_view(), name="turns"),
    path("sessions/<key>/turns/<turn>/", turns.TurnDetail.as_view(), name="turn"),
    path("sessions/<key>/stop/", turns.Stop.as_view(), name="stop"),
    path("own-data/export/", own_data.ExportOwnData.as_view(), name="export"),
    path("own-data/erase/", own_data.EraseOwnData.as_view(), name="erase"),
    path("visitors/", visitors.VisitorList.as_view(), name="visitors"),
    path("visitors/adoption/", visitors.Adoption.as_view(), name="adoption"),
    path("visitors/me/", visitors.OwnVisitor.as_view(), name="visitor"),
    path("tickets/", tickets.TicketList.as_view(), name="tickets"),
    path("sessions/<key>/messages/<int:seq>/", messages.MessageDetail.as_view(), name="message"),
    path(
        "sessions/<key>/messages/<int:seq>/versions/",
        messages.VersionList.as_view(),
        name="versions",
    ),
    path(
        "sessions/<key>/turns/<turn>/feedback/",
        feedback.TurnFeedback.as_view(),
        name="feedback",
    ),
]
"""The URLs that exist."""

# Also without a slash at the end: APPEND_SLASH would redirect a POST, which becomes a GET.
OTHERS = r"^((sessions|removed|own-data|tickets|visitors)(/(?s:.*))?|health/(?s:.+))\Z"

urlpatterns = [*resources, re_path(OTHERS, unknown.Unknown.as_view(), name="unknown")]
