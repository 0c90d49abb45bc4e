"""The base of the pages of actions and jobs; the ModelAdmin of sessions checks permissions."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import uuid4

from django.contrib import messages
from django.contrib.admin.helpers import AdminForm
from django.db.models import Q
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.utils.http import url_has_allowed_host_and_scheme
from django.views import View

from chatmemory.admin.focus import focus_first
from chatmemory.admin.jobs.words import skipped_by
from chatmemory.admin.readonly import ReadOnlyAdmin, operator
from chatmemory.admin.sections import SESSIONS, Section
from chatmemory.admin.text import visible
from chatmemory.errors import MemoryUnavailable
from chatmemory.models import AuditAction, AuditEntry, Job, JobQuerySet
from chatmemory.services.jobs.actions import ACTIONS
from chatmemory.services.jobs.claims import JobClaim
from chatmemory.services.jobs.create import Order, is_undoable
from chatmemory.services.jobs.run import run_slice

BACK = "back"
"""The parameter with the URL of the page from which the operator came."""
MAX_REASONS = 5
MAX_ENTRIES = 1_000


class JobsPage(View):
    """A page about an action or a job. `model_admin` is the admin of sessions."""

    model_admin: ReadOnlyAdmin = None  # type: ignore[assignment]  # as_view sets it
    section: ClassVar[Section] = SESSIONS

    def order(self, reason: str, permission: str) -> Order:
        """Return an order of the operator, whose first slice this request executes."""
        # Without those that the host grants in another way: only Django's can be checked later.
        needed = (self.model_admin.view_codename, permission)
        held = [n for n in needed if self.request.user.has_perm(f"chatmemory.{n}")]
        by = operator(self.request)
        return Order(by=by, reason=reason, permissions=held, owner=new_owner())

    @property
    def back(self) -> str:
        """The page from which the operator came, if the address names one of this site."""
        url = self.request.GET.get(BACK, "")
        is_own = url.startswith("/") and url_has_allowed_host_and_scheme(url, allowed_hosts=None)
        return url if is_own else ""

    def to_job(self, pk: int, back: str) -> HttpResponse:
        query = back and f"?{urlencode({BACK: back})}"
        return redirect(f"{self.model_admin.url_of('job_change', pk)}{query}")

    def may_undo(self, job: Job) -> bool:
        undo = ACTIONS[job.action].undo
        return is_undoable(job) and self.model_admin.permits(self.request, ACTIONS[undo].permission)

    def answer(self, job: Job, back: str, name: str) -> HttpResponse:
        """Return to a page with a message of what a job has done; to the job while it is active.

        `name` is that of its session, if it is one.
        """
        if job.status != Job.Status.COMPLETE:
            return self.to_job(job.pk, back)
        context = {
            "job": job,
            "name": name,
            "skipped": skipped_by(job),
            "back": back,
            "may_undo": self.may_undo(job),
        }
        level = messages.SUCCESS if job.done else messages.WARNING
        text = render_to_string("admin/chatmemory/job/message.html", context, self.request)
        messages.add_message(self.request, level, text)
        return redirect(back)

    def reasons(self) -> list[str]:
        """Return the operator's last different reasons, the newest first, in one statement.

        Only of the newest `MAX_ENTRIES`: most entries are readings, which have none.
        """
        by = operator(self.request)
        own = AuditEntry.objects.filter(actor_kind=by.kind, actor_id=by.id)
        # The reason of a refusal is the name of a permission.
        entries = own.exclude(action=AuditAction.REFUSED).order_by("-created_at")
        reasons = entries.values_list("reason", flat=True)[:MAX_ENTRIES]
        return [visible(one) for one in dict.fromkeys(filter(None, reasons))][:MAX_REASONS]

    def page(self, title: Any) -> dict[str, Any]:
        """Return the context that each page needs."""
        return self.model_admin.page_context(self.request, section=self.section, title=title)


def new_owner() -> str:
    """Return a name for the lease of a request."""
    return f"request:{uuid4().hex}"


def execute(claim: JobClaim) -> None:
    """Execute a slice in this request: a process of a WSGI server has no other time for it."""
    # After an error the page of the job shows how far it is. Its lease expires, and it continues.
    with suppress(MemoryUnavailable):
        run_slice(claim)


def visible_jobs(request: HttpRequest) -> JobQuerySet:
    """Return the jobs that an operator can view: all with `view_audit`, otherwise their own."""
    if request.user.has_perm("chatmemory.view_audit"):
        return Job.objects.all()
    by = operator(request)
    return Job.objects.filter(Q(actor_kind=by.kind, actor_id=by.id))


def fields_of(form: Form, *, focus: str | None = None) -> AdminForm:
    """Return the visible fields of a form, as Django's admin renders them.

    The reason has the suggestions of `reasons.html`. With `focus`, one field has the focus: see
    `focus_first`.
    """
    form.fields["reason"].widget.attrs["list"] = "chatmemory-reasons"
    names = [field.name for field in form.visible_fields()]
    if focus is not None:
        focus_first(form, names, first=focus)
    return AdminForm(form, [(None, {"fields": names})], {})  # type: ignore[arg-type]  # takes any form
