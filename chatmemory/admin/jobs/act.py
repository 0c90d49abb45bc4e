"""The page that previews an action on sessions, and stores a job for it after confirmation."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.jobs.base import JobsPage, execute, fields_of
from chatmemory.admin.jobs.forms import FORMS, ActForm
from chatmemory.admin.jobs.results import report
from chatmemory.admin.jobs.selection import (
    DecidesBySession,
    Selection,
    named,
    select,
)
from chatmemory.admin.jobs.summary import Summary, summarize
from chatmemory.admin.jobs.words import EXPLANATIONS, TITLES
from chatmemory.admin.readonly import LIST_FILTERS, operator
from chatmemory.admin.text import number_of
from chatmemory.errors import ChatMemoryError
from chatmemory.models import Job, JobAction, Session
from chatmemory.services.jobs.actions import ACTIONS
from chatmemory.services.jobs.claims import claim_of
from chatmemory.services.jobs.create import create_job


class ConfirmPage(JobsPage):
    """Finds the sessions of a request for an operator who has the permission of the action."""

    action: str
    permission: str

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        about = named(self.model_admin, request)[:2]
        self.model_admin.require(request, "view", self.permission, sessions=about)
        try:
            return super().dispatch(request, *args, **kwargs)
        except DecidesBySession:
            text = _("This site decides for each session who may act. Select up to 100 sessions.")
            messages.error(request, text)
            return redirect(self.model_admin.url_of("session_changelist"))

    def select(self) -> Selection:
        """Return the selected sessions. Raises Http404, DecidesBySession."""
        return select(self.model_admin, self.request, "view", self.permission)

    def origin(self, selection: Selection) -> str:
        """Return the URL of the page from which the operator came: of the session, or the list."""
        if selection.only is None:
            url, query = self.model_admin.url_of("session_changelist"), selection.filters
        else:
            url = self.model_admin.url_of("session_change", selection.only.pk)
            query = selection.filters and urlencode({LIST_FILTERS: selection.filters})
        return f"{url}?{query}" if query else url

    def form(self, data: Any = None, typed: str = "") -> ActForm:
        return FORMS.get(self.action, ActForm)(data, typed=typed)

    def render(self, form: ActForm, selection: Selection, **context: Any) -> HttpResponse:
        """Return the page that asks for confirmation."""
        origin = self.origin(selection)
        context = {
            **self.page(TITLES[self.action]),
            "origin": origin,
            "page_url": origin if selection.only else "",
            "name": selection.only.title if selection.only else "",
            "explanation": EXPLANATIONS[self.action],
            "form": fields_of(form),
            "errors": form.errors,
            "non_field_errors": form.non_field_errors(),
            "selection": selection,
            **context,
        }
        return TemplateResponse(self.request, "admin/chatmemory/job/act.html", context)


class ActPage(ConfirmPage):
    """An action of `ACTIONS`."""

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        self.action = kwargs["action"]
        if self.action not in ACTIONS:
            raise Http404
        self.permission = ACTIONS[self.action].permission

    def get(self, request: HttpRequest, action: str) -> HttpResponse:
        form, selection = self.form(), self.select()
        initial = {name: field.initial for name, field in form.fields.items() if field.initial}
        given = self.form({**initial})
        given.full_clean()
        summary = summarize(action, selection, self.params(given))
        return self.show(self.form(typed=_typed(summary)), selection, summary)

    def post(self, request: HttpRequest, action: str) -> HttpResponse:
        given, selection = self.form(request.POST), self.select()
        given.full_clean()
        params = self.params(given)
        summary = summarize(action, selection, params)
        form = self.form(request.POST, _typed(summary))
        if "preview" in request.POST:
            form.errors.pop("reason", None)
            form.errors.pop("count", None)
        elif form.is_valid():
            if form.cleaned_data["count"] == summary.count:
                return self.confirm(form, selection, params) or self.show(form, selection, summary)
            changed = _("%(label)s now: %(count)s. Check the table and confirm again.")
            text = changed % {"label": summary.count_label, "count": summary.count}
            form.add_error("count" if summary.is_typed else None, text)
        return self.show(form, selection, summary)

    def params(self, form: ActForm) -> dict[str, Any]:
        """Return the arguments of the action; a restore can name the audit entry to undo."""
        entry = number_of(self.request.GET.get("entry", ""))
        is_named = self.action == JobAction.RESTORE and entry is not None
        return {**form.params(), **({"entry": entry} if is_named else {})}

    def show(self, form: ActForm, selection: Selection, summary: Summary) -> HttpResponse:
        is_previewed = "value" in form.fields or "tag" in form.fields
        return self.render(form, selection, summary=summary, has_preview_button=is_previewed)

    def confirm(
        self, form: ActForm, selection: Selection, params: dict[str, Any]
    ) -> HttpResponse | None:
        """Store a job and execute its first slice; return None after an error of the form."""
        order = self.order(form.cleaned_data["reason"], self.permission)
        try:
            job = create_job(
                action=self.action, sessions=selection.sessions, order=order, params=params
            )
        except ChatMemoryError as error:
            form.add_error(None, str(error))
            return None
        self.log(job, selection)
        execute(claim_of(job))
        job.refresh_from_db()
        # A session may be deleted meanwhile, so the job can have fewer than the selection.
        if len(selection.listed) > 1 or job.status != Job.Status.COMPLETE:
            return redirect(self.model_admin.url_of("job_change", job.pk))
        report(self.request, job, self.model_admin.url_of("job_change", job.pk))
        return redirect(self.origin(selection))

    def log(self, job: Job, selection: Selection) -> None:
        """Add entries to Django's admin log: for each listed session, or for the job.

        The log may outlive the person's data, so it must not contain a title, key or tag.
        """
        subjects: list[Job | Session] = [*selection.listed] if selection.is_listed else [job]
        content_type = ContentType.objects.get_for_model(type(subjects[0]))
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=operator(self.request).id,
                content_type=content_type,
                object_id=str(subject.pk),
                object_repr=f"{subject._meta.verbose_name} {subject.pk}",
                action_flag=CHANGE,
                change_message=f"{TITLES[self.action]}: {job}",
            )
            for subject in subjects
        )


def _typed(summary: Summary) -> str:
    return summary.count_label if summary.is_typed else ""
