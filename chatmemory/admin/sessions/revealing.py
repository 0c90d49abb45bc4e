"""The page on which an operator reveals a masked session."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.helpers import AdminForm
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.jobs.forms import ActionForm
from chatmemory.admin.jobs.words import error_text
from chatmemory.admin.privacy import REVEAL_SECONDS, name_of, reveal
from chatmemory.admin.sessions.pages import SessionPage
from chatmemory.conf import settings
from chatmemory.errors import ChatMemoryError
from chatmemory.models import Session


class RevealView(SessionPage):
    """Asks for a reason, and shows the session unmasked for a while."""

    permission = "view_unmasked"

    def requested_sessions(self) -> QuerySet[Session]:
        return self.model_admin.get_queryset(self.request).filter(pk=self.kwargs["pk"])

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        sessions = self.requested_sessions()
        self.model_admin.require(request, "view", "view_transcript", sessions=sessions)
        answer = super().dispatch(request, *args, **kwargs)
        is_masked = settings.TRANSCRIPTS == "masked"
        return answer if is_masked or answer.status_code != 200 else self.to_session()

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self.render(ActionForm())

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        form = ActionForm(request.POST)
        [session] = self.permitted_sessions()
        if settings.TRANSCRIPTS == "masked" and form.is_valid():
            try:
                reveal(request, session, form.cleaned_data["reason"])
            except ChatMemoryError as error:
                form.add_error("reason", error_text(error))
            else:
                return self.to_session()
        return self.render(form)

    def to_session(self) -> HttpResponse:
        return redirect(self.model_admin.url_of("session_change", self.kwargs["pk"]))

    def render(self, form: ActionForm) -> HttpResponse:
        """Return the page with the form."""
        [session] = self.permitted_sessions()
        context = self.model_admin.page_context(
            self.request,
            title=_("Reveal"),
            session=session,
            name=name_of(self.model_admin, self.request, session),
            minutes=REVEAL_SECONDS // 60,
            form=AdminForm(form, [(None, {"fields": ["reason"]})], {}),  # type: ignore[arg-type]  # takes any form
            errors=form.errors,
        )
        return TemplateResponse(self.request, "admin/chatmemory/session/reveal.html", context)
