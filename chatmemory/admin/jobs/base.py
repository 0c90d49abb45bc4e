"""The base of the pages of actions and jobs; the ModelAdmin of sessions checks permissions."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any
from uuid import uuid4

from django.contrib.admin.helpers import AdminForm
from django.db.models import Q
from django.forms import Form
from django.http import HttpRequest
from django.views import View

from chatmemory.admin.readonly import ReadOnlyAdmin, operator
from chatmemory.errors import MemoryUnavailable
from chatmemory.models import Job, JobQuerySet, Session
from chatmemory.services.jobs.claims import JobClaim
from chatmemory.services.jobs.create import Order
from chatmemory.services.jobs.run import run_slice


class JobsPage(View):
    """A page about an action or a job. `model_admin` is that of the sessions."""

    model_admin: ReadOnlyAdmin = None  # type: ignore[assignment]  # as_view sets it

    def order(self, reason: str, permission: str) -> Order:
        """Return an order of the operator, whose first slice this request executes."""
        # Without those that the host grants in another way: only Django's can be checked later.
        needed = (self.model_admin.view_codename, permission)
        held = [n for n in needed if self.request.user.has_perm(f"chatmemory.{n}")]
        by = operator(self.request)
        return Order(by=by, reason=reason, permissions=held, owner=new_owner())

    def page(self, title: Any) -> dict[str, Any]:
        """Return the context that each page needs."""
        site = self.model_admin.admin_site
        return {**site.each_context(self.request), "opts": Session._meta, "title": title}


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


def fields_of(form: Form, *, without: Collection[str] = ()) -> AdminForm:
    """Return the visible fields of a form, as Django's admin renders them."""
    names = [field.name for field in form.visible_fields() if field.name not in without]
    return AdminForm(form, [(None, {"fields": names})], {})  # type: ignore[arg-type]  # takes any form
