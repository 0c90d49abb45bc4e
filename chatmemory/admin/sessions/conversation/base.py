"""The base of the pages about one session and its messages."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from chatmemory.admin.privacy import Content, content_of, name_of
from chatmemory.admin.readonly import LIST_FILTERS, operator
from chatmemory.admin.sessions.pages import SessionPage
from chatmemory.models import Session
from chatmemory.services.audit import readings

KEPT = (LIST_FILTERS, "source", "removed")
"""Parameters that the links between the pages of a session keep."""


class ConversationPage(SessionPage):
    """A page about one session."""

    permission = "view"
    further_permissions: ClassVar[tuple[str, ...]] = ()
    """Permissions that the page requires in addition."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        names = ("view", self.permission, *self.further_permissions)
        self.model_admin.require(request, *names, sessions=self.requested_sessions())
        is_answered = hasattr(self, (request.method or "").lower())  # otherwise 405
        if is_answered and "view_transcript" in names and not self._is_shown():
            messages.warning(request, _("The texts of this conversation are not shown."))
            return redirect(self.page_url(kwargs["pk"]))
        return super().dispatch(request, *args, **kwargs)

    def _is_shown(self) -> bool:
        """Return whether the operator may read texts now; see the setting TRANSCRIPTS."""
        shown = content_of(self.model_admin, self.request, self.session)
        return shown is Content.SHOWN

    def requested_sessions(self) -> QuerySet[Session]:
        sessions = self.model_admin.get_queryset(self.request)
        return sessions.filter(pk=self.kwargs["pk"]).select_related("owner")

    @cached_property
    def session(self) -> Session:
        """The session of the page, read once. Raises Http404."""
        [session] = self.permitted_sessions()
        if not self.model_admin.permits(self.request, *self.further_permissions, obj=session):
            raise Http404
        return session

    @cached_property
    def name(self) -> str:
        """What the pages call the session."""
        return name_of(self.model_admin, self.request, self.session)

    def page_url(self, pk: int, fragment: str = "", **query: object) -> str:
        """Return the URL of a session's page, with the parameters to keep."""
        return self.url("session_change", pk, fragment=fragment, **query)

    def url(self, page: str, *args: object, fragment: str = "", **query: object) -> str:
        """Return the URL of a page with these parameters and those to keep; None removes one."""
        kept = {name: self.request.GET[name] for name in KEPT if name in self.request.GET}
        given = {name: value for name, value in {**kept, **query}.items() if value is not None}
        address = self.model_admin.url_of(page, *args)
        encoded = f"?{urlencode(given)}" if given else ""
        return f"{address}{encoded}{fragment and '#' + fragment}"

    def record_reading(self, session: Session, seqs: list[int]) -> None:
        """Record that the operator reads these messages, or the texts of the session."""
        span = {"from_seq": min(seqs), "to_seq": max(seqs)} if seqs else {}
        readings.record_reading(session=session, by=operator(self.request), **span)

    def render(self, template: str, session: Session, **context: Any) -> HttpResponse:
        """Return the page with the context that all admin pages need."""
        full = self.model_admin.page_context(
            self.request,
            session=session,
            name=self.name,
            page_url=self.page_url(session.pk),
            **context,
        )
        return TemplateResponse(self.request, f"admin/chatmemory/session/{template}", full)
