"""The page of a job: its progress and results, cancellation and undo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.jobs.base import JobsPage, execute, fields_of, new_owner, visible_jobs
from chatmemory.admin.jobs.forms import ActionForm
from chatmemory.admin.jobs.selection import DecidesBySession, permitted
from chatmemory.admin.jobs.words import TITLES, error_text, job_name, reason_of, skipped_by
from chatmemory.admin.privacy import name_of, visible_names
from chatmemory.admin.readonly import operator
from chatmemory.admin.sections import JOBS, may_view
from chatmemory.admin.text import number_of, visible
from chatmemory.errors import ChatMemoryError
from chatmemory.models import AuditEntry, Job, JobItem, Session
from chatmemory.services.jobs.actions import ACTIONS
from chatmemory.services.jobs.claims import claim_job, claim_of
from chatmemory.services.jobs.create import is_undoable, undo_job
from chatmemory.services.jobs.run import cancel_job

PER_PAGE = 100
"""Items on the page of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRow:
    """A session of the job."""

    item: JobItem
    name: str
    """Empty if the operator cannot view the session, or if it is deleted."""

    @property
    def outcome(self) -> str:
        return reason_of(self.item.outcome)


class OneJobPage(JobsPage):
    """A page about the job that the address names."""

    section = JOBS

    def find(self, pk: int) -> Job:
        """Return a job that the operator can view. Raises PermissionDenied, Http404."""
        self.model_admin.require(self.request, "view")
        job = visible_jobs(self.request).filter(pk=pk).first()
        if job is None:
            raise Http404
        return job


class JobPage(OneJobPage):
    """Shows a job. While it is active, the page updates itself, and may execute a slice."""

    http_method_names = ("get",)

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        job = self.find(pk)
        # In a process of a WSGI server, only requests can continue a job. Elsewhere the thread of
        # a serving process has usually claimed it already.
        if job.is_active and (claim := claim_job(owner=new_owner(), job_pk=pk)):
            execute(claim)
            job.refresh_from_db()
        rows = self.rows(job)
        related = visible_jobs(request).filter(Q(pk=job.undo_of_id) | Q(undo_of=job))
        context = {
            **self.page(job_name(job)),
            "job": job,
            "skipped": skipped_by(job),
            "reason": visible(job.reason),
            "back": self.back,
            "params": ", ".join(
                f"{name}: {visible(str(v))}" for name, v in job.params.items() if name != "seen_at"
            ),
            "rows": rows[:PER_PAGE],
            "next": rows[PER_PAGE - 1].item.session_pk if len(rows) > PER_PAGE else None,
            "outcome": request.GET.get("outcome", ""),
            "error": reason_of(job.error) if job.error else "",
            "can_cancel": job.is_active and job.cancel_requested_at is None,
            "can_undo": self.may_undo(job),
            "can_view_audit": may_view(self.model_admin.admin_site, request, AuditEntry),
            "related": [(one, job_name(one)) for one in related.order_by("pk")],
        }
        return TemplateResponse(request, "admin/chatmemory/job/job.html", context)

    def rows(self, job: Job) -> list[ItemRow]:
        """Return a page of the items with an outcome, and one more if there are more."""
        items = job.items.exclude(outcome="").order_by("session_pk")
        if outcome := self.request.GET.get("outcome"):
            # PostgreSQL refuses a parameter with a null character.
            is_code = outcome.isprintable()
            items = items.filter(outcome=outcome) if is_code else items.none()
        if (after := number_of(self.request.GET.get("after", ""))) is not None:
            items = items.filter(session_pk__gt=after)
        found = list(items[: PER_PAGE + 1])
        pks = [item.session_pk for item in found]
        names = visible_names(self.model_admin, self.request, pks)
        return [ItemRow(item=item, name=names.get(item.session_pk, "")) for item in found]


class CancelPage(OneJobPage):
    """Cancels a job."""

    http_method_names = ("post",)

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        job = self.find(pk)
        self.model_admin.require(request, ACTIONS[job.action].permission)
        if cancel_job(job_pk=job.pk, by=operator(request)):
            messages.success(request, _("The job stops. What it has done stays done."))
        else:
            messages.warning(request, _("The job has ended already."))
        return self.to_job(pk, self.back)


class UndoPage(OneJobPage):
    """Asks for a reason, and stores a job that undoes another one."""

    http_method_names = ("get", "post")

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        job = self.find(kwargs["pk"])
        if request.method == "POST" and (undo := self.own_undo_of(job)):  # a second click
            return self.answer(undo, self.back, "") if self.back else self.to_job(undo.pk, "")
        if not is_undoable(job):
            messages.warning(request, _("This job cannot be undone, or was undone already."))
            return self.to_job(job.pk, self.back)
        self.action = ACTIONS[job.action].undo
        self.permission = ACTIONS[self.action].permission
        self.model_admin.require(request, self.permission)
        self.job = job
        return super().dispatch(request, *args, **kwargs)

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self.render(ActionForm(initial=self.default()))

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        # The button in the message of an action sends no reason.
        form = ActionForm(request.POST if "reason" in request.POST else self.default())
        if not form.is_valid():
            return self.render(form)
        order = self.order(form.cleaned_data["reason"], self.permission)
        try:
            undo = undo_job(job=self.job, sessions=self.sessions(), order=order)
        except ChatMemoryError as error:
            form.add_error(None, error_text(error))
            return self.render(form)
        except DecidesBySession:
            text = _(
                "This site decides for each conversation who may act. Select up to 200 of them."
            )
            form.add_error(None, text)
            return self.render(form)
        name = self.name()
        execute(claim_of(undo))
        undo.refresh_from_db()
        return self.answer(undo, self.back, name) if self.back else self.to_job(undo.pk, "")

    def default(self) -> dict[str, str]:
        reason = visible(self.job.reason)
        return {"reason": f"{_('Undo')}: {reason}" if reason else str(_("Undo"))}

    def own_undo_of(self, job: Job) -> Job | None:
        """Return the job by which this operator undid another one."""
        by = operator(self.request)
        return job.undone_by.filter(actor_kind=by.kind, actor_id=by.id).order_by("-pk").first()

    def name(self) -> str:
        """Return the name of the session, if it is one on which the operator may act."""
        session = self.sessions().first() if self.job.done == 1 else None
        return name_of(self.model_admin, self.request, session) if session else ""

    def sessions(self) -> QuerySet[Session]:
        """Return the changed sessions that the operator may act on. Raises DecidesBySession."""
        done = self.job.items.filter(outcome=JobItem.DONE).values("session_pk")
        sessions = self.model_admin.get_queryset(self.request).filter(pk__in=done)
        return permitted(self.model_admin, self.request, sessions, "view", self.permission)

    def render(self, form: ActionForm) -> HttpResponse:
        context = {
            **self.page(_("Undo: %(job)s") % {"job": job_name(self.job)}),
            "job": self.job,
            "job_name": job_name(self.job),
            "name": self.name(),
            "action": self.action,
            "action_title": TITLES[self.action],
            "back": self.back,
            "reasons": self.reasons(),
            "form": fields_of(form),
            "errors": form.errors,
            "non_field_errors": form.non_field_errors(),
        }
        return TemplateResponse(self.request, "admin/chatmemory/job/undo.html", context)
