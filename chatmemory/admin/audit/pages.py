"""The audit as a CSV file, and its verification."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC
from itertools import islice
from typing import Any

from django import forms
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.options import IncorrectLookupParameters
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _
from django.views import View

from chatmemory import codec, formats
from chatmemory.admin.keyset import list_without_rows
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.admin.text import visible
from chatmemory.database.batches import in_pages
from chatmemory.errors import ChatMemoryError
from chatmemory.formats.people import csv_row
from chatmemory.models import AuditEntry
from chatmemory.services.audit.seals import audit_state, verify_audit

CSV_COLUMNS = (
    "number",
    "time (UTC)",
    "action",
    "session",
    "from",
    "to",
    "actor",
    "reason",
    "counts",
)
MAX_VERIFIED = 100_000
"""The page verifies at most this many entries, which takes seconds; the command any number."""
MAX_FINDINGS = 100
"""The page lists at most this many findings."""


class AuditPage(View):
    """A page about the audit."""

    model_admin: ReadOnlyAdmin = None  # type: ignore[assignment]  # as_view sets it

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        self.model_admin.require(request, "view")
        return super().dispatch(request, *args, **kwargs)


class CsvView(AuditPage):
    """Downloads the entries that the filters of the list select, the newest first."""

    def get(self, request: HttpRequest) -> HttpResponseBase:
        try:
            entries = list_without_rows(self.model_admin, request).queryset
        except IncorrectLookupParameters:
            raise Http404 from None
        rows = (
            entry
            for entry in in_pages(entries, "-pk")
            if self.model_admin.permits(request, "view", obj=entry)
        )
        return formats.file_response(
            request, _csv(rows), content_type="text/csv", filename="audit.csv"
        )


class HeadForm(forms.Form):
    """A head that was kept elsewhere."""

    head = forms.CharField(
        label=_("Earlier head"),
        required=False,
        help_text=_("A head that you kept. Without it, a cut of the newest entries stays hidden."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


class VerifyView(AuditPage):
    """Shows the head of the audit, and verifies the entries."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.render(HeadForm())

    def post(self, request: HttpRequest) -> HttpResponse:
        form = HeadForm(request.POST)
        findings = None
        if form.is_valid() and not self.is_too_long():
            try:
                found = verify_audit(head=form.cleaned_data["head"])
                findings = [finding.sentence for finding in islice(found, MAX_FINDINGS)]
            except ChatMemoryError as error:
                form.add_error("head", str(error))
        return self.render(form, findings)

    def is_too_long(self) -> bool:
        """Return whether there are more entries than a request can verify."""
        return len(AuditEntry.objects.order_by().values("pk")[: MAX_VERIFIED + 1]) > MAX_VERIFIED

    def render(self, form: forms.Form, findings: list[str] | None = None) -> HttpResponse:
        """Return the page; `findings` is None before a verification."""
        context = self.model_admin.page_context(
            self.request,
            title=_("Verify the audit"),
            state=audit_state(),
            is_too_long=self.is_too_long(),
            findings=findings,
            form=AdminForm(form, [(None, {"fields": ["head"]})], {}),  # type: ignore[arg-type]  # takes any form
            errors=form.errors,
        )
        template = "admin/chatmemory/auditentry/verify.html"
        return TemplateResponse(self.request, template, context)


def _csv(entries: Iterable[AuditEntry]) -> Iterator[str]:
    yield "\ufeff" + csv_row(*CSV_COLUMNS)
    for entry in entries:
        yield csv_row(
            entry.pk,
            entry.created_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
            entry.action,
            entry.session_pk,
            entry.from_seq,
            entry.to_seq,
            f"{visible(entry.actor_label)} ({entry.actor_kind})",
            visible(entry.reason),
            codec.dump_json(entry.counts) if entry.counts else "",
        )
