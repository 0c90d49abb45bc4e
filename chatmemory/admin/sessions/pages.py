"""The base of all pages about sessions; the registered ModelAdmin checks their permissions."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.views import View

from chatmemory.admin.readonly import ReadOnlyAdmin, operator
from chatmemory.models import Session


class SessionPage(View):
    """A page about sessions that the queryset of `model_admin` contains."""

    model_admin: ReadOnlyAdmin = None  # type: ignore[assignment]  # as_view sets it
    permission: ClassVar[str]
    """The permission that this page requires in addition to viewing a session."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        self.model_admin.require(
            request, "view", self.permission, sessions=self.requested_sessions()
        )
        return super().dispatch(request, *args, **kwargs)

    def requested_sessions(self) -> QuerySet[Session]:
        """Return the sessions that the request names and the operator can view."""
        raise NotImplementedError

    def permitted_sessions(self) -> list[Session]:
        """Return the requested sessions for which the operator has both permissions.

        Raises Http404 if there are none.
        """
        names = ("view", self.permission)
        found = [
            session
            for session in self.requested_sessions()
            if self.model_admin.permits(self.request, *names, obj=session)
        ]
        if not found:
            raise Http404
        return found

    def log(self, session: Session, change: str) -> None:
        """Add an entry to Django's admin log.

        The log may outlive the person's data, so `change` must not contain a title, key or tag.
        """
        LogEntry.objects.create(
            user_id=operator(self.request).id,
            content_type=ContentType.objects.get_for_model(Session),
            object_id=str(session.pk),
            object_repr=f"{Session._meta.verbose_name} {session.pk}",
            action_flag=CHANGE,
            change_message=change,
        )
