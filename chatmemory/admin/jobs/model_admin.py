"""The list of jobs."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.choices import ChoiceFilter
from chatmemory.admin.jobs.base import visible_jobs
from chatmemory.admin.jobs.words import TITLES
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.text import visible
from chatmemory.models import Job, JobAction

REASON_WORDS = 20


class StatusFilter(ChoiceFilter):
    """By the status of the job."""

    title = _("status")
    parameter_name = "status_is"
    conditions = {value: (label, Q(status=value)) for value, label in Job.Status.choices}  # noqa: RUF012  # Django's form


class JobActionFilter(ChoiceFilter):
    """By the action of the job."""

    title = _("action")
    parameter_name = "action_is"
    conditions = {name: (label, Q(action=name)) for name, label in JobAction.choices}  # noqa: RUF012  # Django's form


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Lists jobs, the newest first: all with `view_audit`, otherwise the operator's own.

    The pages of a job belong to `SessionAdmin`, whose queryset limits what they show.
    """

    view_codename = "view_session"
    list_display = ("title", "status", "progress", "actor_label", "created_at", "short_reason")
    list_display_links = None
    list_filter = (StatusFilter, JobActionFilter)
    ordering = ("-pk",)
    actions = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        return visible_jobs(request)

    def get_urls(self) -> list[URLPattern]:
        wrapped = self.admin_site.admin_view(self.changelist_view)
        return [path("", wrapped, name="chatmemory_job_changelist")]

    @admin.display(description=_("job"))
    def title(self, job: Job) -> str:
        label = f"{TITLES.get(job.action, job.action)} ({job.pk})"
        return format_html('<a href="{}">{}</a>', self.url_of("job_change", job.pk), label)

    @admin.display(description=_("sessions"))
    def progress(self, job: Job) -> str:
        done = _("%(done)s of %(total)s") % {"done": job.done, "total": job.total}
        if not job.skipped:
            return str(done)
        return f"{done} ({_('skipped: %(number)s') % {'number': job.skipped_count}})"

    @admin.display(description=_("reason"))
    def short_reason(self, job: Job) -> str:
        return Truncator(visible(job.reason)).words(REASON_WORDS)
