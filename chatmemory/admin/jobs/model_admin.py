"""The list of jobs."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.choices import ChoiceFilter
from chatmemory.admin.jobs.base import visible_jobs
from chatmemory.admin.jobs.words import job_name
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.sections import JOBS
from chatmemory.admin.text import ago, clamped, grouped, visible
from chatmemory.models import Job, JobAction


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
    section = JOBS
    list_display = ("title", "status", "progress", "who", "when", "why")
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
    def title(self, job: Job) -> SafeString:
        html = '<a href="{}">{}</a> <span class="chatmemory-aside">#{}</span>'
        return format_html(html, self.url_of("job_change", job.pk), job_name(job), job.pk)

    @admin.display(description=_("conversations"))
    def progress(self, job: Job) -> str:
        counts = {"done": grouped(job.done), "total": grouped(job.total)}
        done = _("%(done)s of %(total)s") % counts
        if not job.skipped:
            return str(done)
        skipped = _("skipped: %(number)s") % {"number": grouped(job.skipped_count)}
        return f"{done} ({skipped})"

    @admin.display(description=_("operator"))
    def who(self, job: Job) -> str:
        return visible(job.actor_label)

    @admin.display(description=_("confirmed"))
    def when(self, job: Job) -> SafeString:
        return ago(job.created_at)

    @admin.display(description=_("reason"))
    def why(self, job: Job) -> SafeString:
        return clamped(job.reason)
