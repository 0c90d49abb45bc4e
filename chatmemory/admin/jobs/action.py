"""The page that previews an action on sessions, and stores a job for it after confirmation."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
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
from chatmemory.admin.jobs.cut import messages_at_cut
from chatmemory.admin.jobs.forms import FORMS, KEEP_LAST, ActionForm
from chatmemory.admin.jobs.selection import ALL, DecidesBySession, Selection, named, select
from chatmemory.admin.jobs.summary import Summary, summarize
from chatmemory.admin.jobs.words import TITLES, error_text
from chatmemory.admin.readonly import LIST_FILTERS, operator
from chatmemory.admin.text import number_of
from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.database.retries import retried
from chatmemory.errors import ChatMemoryError, NotFound
from chatmemory.models import Job, JobAction, JobItem, Session, StatementNow
from chatmemory.services.jobs.actions import ACTIONS, milliseconds_of
from chatmemory.services.jobs.claims import claim_of
from chatmemory.services.jobs.create import Order, create_job

REPEATED_FOR = timedelta(minutes=1)
"""How long a form that is submitted again has the effect of the first submission."""


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
            text = _(
                "This site decides for each conversation who may act. Select up to 100 of them."
            )
            messages.error(request, text)
            return redirect(self.model_admin.url_of("session_changelist"))

    def select(self) -> Selection:
        """Return the selected sessions. Raises Http404, DecidesBySession."""
        return select(self.model_admin, self.request, "view", self.permission)

    def origin(self, selection: Selection) -> str:
        """Return the URL of the page from which the operator came."""
        if self.back:
            return self.back
        if selection.only is None:
            url, query = self.model_admin.url_of("session_changelist"), selection.filters
        else:
            url = self.model_admin.url_of("session_change", selection.only.pk)
            query = selection.filters and urlencode({LIST_FILTERS: selection.filters})
        return f"{url}?{query}" if query else url

    def form(self, data: Any = None, **options: Any) -> ActionForm:
        return FORMS.get(self.action, ActionForm)(data, **options)

    def render(
        self, form: ActionForm, selection: Selection, *, focus: str = "", **context: Any
    ) -> HttpResponse:
        """Return the page that asks for confirmation.

        Only about one session a field has the focus: a browser would scroll past a table.
        """
        only = selection.only
        context = {
            **self.page(TITLES[self.action]),
            "origin": self.origin(selection),
            "page_url": self.model_admin.url_of("session_change", only.pk) if only else "",
            "name": selection.name,
            "action": self.action,
            "reasons": self.reasons(),
            "form": fields_of(form, focus=focus if only else None),
            "errors": form.errors,
            "non_field_errors": form.non_field_errors(),
            "selection": selection,
            **context,
        }
        return TemplateResponse(self.request, "admin/chatmemory/job/action.html", context)


class ActionPage(ConfirmPage):
    """An action of `ACTIONS`."""

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        self.action = kwargs["action"]
        if self.action not in ACTIONS:
            raise Http404
        self.permission = ACTIONS[self.action].permission

    def get(self, request: HttpRequest, action: str) -> HttpResponse:
        selection = self.select()
        initial = self.initial(selection)
        given = self.form(initial)
        given.full_clean()
        summary = summarize(action, selection, self.params(given))
        form = self.form(typed=_typed_number(summary), initial=initial)
        return self.show(form, selection, summary)

    def post(self, request: HttpRequest, action: str) -> HttpResponse:
        given = self.form(request.POST)
        given.full_clean()
        params = self.params(given)
        try:
            selection = self.select()
        except Http404:
            if self.request.GET.get(ALL) != "1":
                raise
            # The first of two submissions may have changed all that matched.
            messages.warning(request, _("No conversation matches any more. Nothing was changed."))
            return redirect(self.back or self.model_admin.url_of("session_changelist"))
        summary = summarize(action, selection, params)
        form = self.form(request.POST, typed=_typed_number(summary))
        if "preview" in request.POST:
            form.errors.pop("reason", None)
            form.errors.pop("count", None)
        elif form.is_valid():
            if form.cleaned_data["count"] == summary.count:
                return self.confirm(form, selection, params) or self.show(form, selection, summary)
            if job := self.repeated(form, params, selection.pks):
                return self.answer(job, self.origin(selection), selection.name)
            if summary.sessions:
                changed = _("%(label)s now: %(count)s. Nothing was changed; confirm again.")
                text = changed % {"label": summary.count_label, "count": summary.count}
                form.add_error("count" if summary.is_typed else None, text)
        return self.show(form, selection, summary)

    def initial(self, selection: Selection) -> dict[str, Any]:
        """Return the values of the form at first: a trim that removes something."""
        if self.action != JobAction.TRIM:
            return {}
        seq = number_of(self.request.GET.get("before_seq", ""))
        if seq is not None:
            return {"limit": "before_seq", "value": seq}
        half = selection.only.message_count // 2 if selection.only else KEEP_LAST
        return {"limit": "keep_last", "value": max(1, min(KEEP_LAST, half))}

    def params(self, form: ActionForm) -> dict[str, Any]:
        """Return the arguments of the action; a restore can name the audit entry to undo."""
        entry = number_of(self.request.GET.get("entry", ""))
        is_named = self.action == JobAction.RESTORE and entry is not None
        return {**form.params(), **({"entry": entry} if is_named else {})}

    def show(self, form: ActionForm, selection: Selection, summary: Summary) -> HttpResponse:
        is_trim = self.action == JobAction.TRIM
        last = summary.rows[0].last_removed if is_trim and selection.only else None
        is_asked = is_trim and not form.is_bound and "before_seq" not in self.request.GET
        return self.render(
            form,
            selection,
            focus="value" if is_asked else "",
            summary=summary,
            cut=messages_at_cut(self.model_admin, self.request, selection.listed[0], last),
            may_restore=self.model_admin.permits(self.request, "restore_history"),
            has_preview_button=is_trim or "tag" in form.fields,
        )

    def confirm(
        self, form: ActionForm, selection: Selection, params: dict[str, Any]
    ) -> HttpResponse | None:
        """Store a job and execute its first slice; return None after an error of the form."""
        order = self.order(form.cleaned_data["reason"], self.permission)
        try:
            job = self.store(form, selection, params, order)
        except ChatMemoryError as error:
            form.add_error(None, error_text(error))
            return None
        if job.lease_owner == order.owner:
            self.log(job, selection)
            execute(claim_of(job))
            job.refresh_from_db()
        return self.answer(job, self.origin(selection), selection.name)

    @retried(is_repeatable=False)
    def store(
        self, form: ActionForm, selection: Selection, params: dict[str, Any], order: Order
    ) -> Job:
        """Return a new job, or that of an earlier submission of the form."""
        with locked_transaction():
            if selection.is_listed:
                # The second of two simultaneous submissions waits here for the job of the first.
                with suppress(NotFound):  # it was deleted meanwhile
                    lock_pk(selection.pks[0])
            return self.repeated(form, params, selection.pks) or create_job(
                action=self.action, sessions=selection.sessions, order=order, params=params
            )

    def repeated(self, form: ActionForm, params: dict[str, Any], pks: list[int]) -> Job | None:
        """Return the job for these sessions that the same form has just stored, if any."""
        by, seen_at = operator(self.request), form.cleaned_data.get("seen_at")
        if seen_at is None:
            return None
        own = Job.objects.filter(actor_kind=by.kind, actor_id=by.id, action=self.action)
        for job in own.filter(created_at__gte=StatementNow() - REPEATED_FOR):
            is_later = milliseconds_of(job.created_at) >= seen_at and job.params == params
            is_same = job.items.filter(session_pk__in=pks).count() == len(pks)
            if is_later and is_same and not self.is_followed(job, pks):
                return job
        return None

    def is_followed(self, job: Job, pks: list[int]) -> bool:
        """Return whether a later job, such as its undo, is about one of these sessions."""
        return JobItem.objects.filter(job__gt=job.pk, session_pk__in=pks).exists()

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


def _typed_number(summary: Summary) -> str:
    return summary.count_label if summary.is_typed else ""
