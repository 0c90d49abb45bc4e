"""The addresses of actions and jobs, below those of the sessions."""

from __future__ import annotations

from django.db import transaction
from django.urls import URLPattern, path
from django.views import View

from chatmemory.admin.jobs.action import ActionPage
from chatmemory.admin.jobs.export import ExportPage
from chatmemory.admin.jobs.pages import CancelPage, JobPage, UndoPage
from chatmemory.admin.readonly import ReadOnlyAdmin


def job_urls(model_admin: ReadOnlyAdmin) -> list[URLPattern]:
    """Return the pages of actions and jobs, which find sessions in the queryset of this admin.

    They belong to the admin of sessions, so a site that registers only that one has them too.
    """

    def page(route: str, view: type[View], name: str) -> URLPattern:
        wrapped = model_admin.admin_site.admin_view(view.as_view(model_admin=model_admin))
        # A slice commits after each session. One transaction would hold all their locks.
        return path(route, transaction.non_atomic_requests(wrapped), name=f"chatmemory_{name}")

    return [
        page("action/export/", ExportPage, "session_export"),
        page("action/<str:action>/", ActionPage, "session_action"),
        page("jobs/<int:pk>/", JobPage, "job_change"),
        page("jobs/<int:pk>/cancel/", CancelPage, "job_cancel"),
        page("jobs/<int:pk>/undo/", UndoPage, "job_undo"),
    ]
