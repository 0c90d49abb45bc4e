"""The page on which operators add and remove the tags of a session."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.admin.helpers import AdminForm
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from chatmemory import services
from chatmemory.admin.jobs.forms import TagForm
from chatmemory.admin.jobs.words import error_text
from chatmemory.admin.privacy import name_of
from chatmemory.admin.readonly import operator
from chatmemory.admin.sessions.pages import SessionPage
from chatmemory.admin.text import visible
from chatmemory.errors import ChatMemoryError
from chatmemory.models import Session
from chatmemory.services.tags import tags_of

ACTIONS = {
    "add": (services.tag_session, _("Tag added")),
    "remove": (services.untag_session, _("Tag removed")),
}
"""For each button, the service and the text for the admin log."""


class TagsView(SessionPage):
    """Shows the tags of a session, and adds or removes one."""

    permission = "tag_session"

    def requested_sessions(self) -> QuerySet[Session]:
        return self.model_admin.get_queryset(self.request).filter(pk=self.kwargs["pk"])

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self.render(TagForm())

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        form = TagForm(request.POST)
        action = ACTIONS.get(request.POST.get("action", ""))
        if action is None or not form.is_valid():
            return self.render(form)
        service, change = action
        [session] = self.permitted_sessions()
        try:
            entry = service(
                session_key=session.key,
                scope=session.removed_scope or session.scope,
                session_pk=session.pk,
                by=operator(request),
                tag=form.cleaned_data["tag"],
                reason=form.cleaned_data["reason"],
            )
        except ChatMemoryError as error:
            form.add_error(None, error_text(error))
            return self.render(form)
        if entry is None:
            messages.warning(request, _("No tag was changed."))
        else:
            self.log(session, str(change))
        return redirect(self.model_admin.url_of("session_tags", pk))

    def render(self, form: TagForm) -> HttpResponse:
        """Return the list of tags, and the form to change it."""
        [session] = self.permitted_sessions()
        context = self.model_admin.page_context(
            self.request,
            title=_("Tags"),
            session=session,
            name=name_of(self.model_admin, self.request, session),
            tags=[visible(tag) for tag in sorted(tags_of(session))],
            form=AdminForm(form, [(None, {"fields": ["tag", "reason"]})], {}),  # type: ignore[arg-type]  # takes any form
            errors=form.errors,
            non_field_errors=form.non_field_errors(),
        )
        return TemplateResponse(self.request, "admin/chatmemory/session/tags.html", context)
