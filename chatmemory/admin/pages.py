"""The base of all pages about sessions, which check permissions with the registered ModelAdmin."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.views import View

from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.models import Session


class SessionPage(View):
    """A page about sessions of the queryset of `model_admin`."""

    model_admin: ReadOnlyAdmin = None  # type: ignore[assignment]  # as_view sets it
    permission: ClassVar[str]
    """What this page requires, in addition to the permission to view a session."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        self.model_admin.require(request, "view", self.permission, sessions=self.named())
        return super().dispatch(request, *args, **kwargs)

    def named(self) -> QuerySet[Session]:
        """Return the sessions that the request names, of those that the operator can reach."""
        raise NotImplementedError

    def permitted(self) -> list[Session]:
        """Return the named sessions that the operator may open here. Raises Http404 for none."""
        names = ("view", self.permission)
        found = [
            session
            for session in self.named()
            if self.model_admin.permits(self.request, *names, obj=session)
        ]
        if not found:
            raise Http404
        return found
