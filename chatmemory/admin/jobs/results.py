"""Report to the operator what a job has done."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from chatmemory.admin.jobs.words import TITLES, reason_of
from chatmemory.models import Job, JobAction
from chatmemory.services.jobs.actions import ACTIONS


def report(request: HttpRequest, job: Job, address: str) -> None:
    """Show the results of a job on the operator's next page, with a link to its page."""
    if job.done:
        link = format_html('<a href="{}">{}</a>', address, _("Details and undo"))
        messages.success(request, format_html("{} {}", done_text(job), link))
    for code, times in job.skipped.items():
        reason = reason_of(code)
        messages.warning(request, format_html("{} ({})", reason, times) if times > 1 else reason)


def done_text(job: Job) -> str:
    """Return what a job has changed."""
    text = ngettext(
        "%(title)s: one session done.", "%(title)s: %(sessions)s sessions done.", job.done
    ) % {"title": TITLES[job.action], "sessions": job.done}
    moved = job.counts.get("messages", 0)
    if ACTIONS[job.action].hides:
        return f"{text} {_('Messages removed: %(messages)s.') % {'messages': moved}}"
    if job.action == JobAction.RESTORE:
        return f"{text} {_('Messages restored: %(messages)s.') % {'messages': moved}}"
    return text
