"""The page that downloads the selected sessions; not a job, since the download is the progress."""

from __future__ import annotations

from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from chatmemory import formats
from chatmemory.admin.export_format import proposed_format, remember_format
from chatmemory.admin.jobs.action import ConfirmPage
from chatmemory.admin.jobs.words import EXPORT, error_text
from chatmemory.admin.readonly import operator
from chatmemory.errors import ChatMemoryError
from chatmemory.services.transfers.exports import begin_export_of


class ExportPage(ConfirmPage):
    """Streams the file, so memory does not grow with its size."""

    action = EXPORT
    permission = "export_history"

    def get(self, request: HttpRequest) -> HttpResponse:
        proposed = proposed_format(request, formats.FORMATS)
        return self.show(self.form(initial={"format": proposed}))

    def post(self, request: HttpRequest) -> HttpResponseBase:
        form = self.form(request.POST)
        if not form.is_valid():
            return self.show(form)
        given = form.cleaned_data
        try:
            export = begin_export_of(
                sessions=self.select().sessions,
                format=given["format"],
                by=operator(request),
                reason=given["reason"],
            )
        except ChatMemoryError as error:
            form.add_error(None, error_text(error))
            return self.show(form)
        remember_format(request, given["format"])
        # An ASGI server would read all of a sync iterator into memory.
        is_async = isinstance(request, ASGIRequest)
        text = formats.awrite_export(export) if is_async else formats.write_export(export)
        written = formats.FORMATS[export.format]
        kind = f"{written.content_type}; charset=utf-8"
        response = StreamingHttpResponse(text, content_type=kind)
        response["Content-Disposition"] = f'attachment; filename="chats.{written.suffix}"'
        return response

    def show(self, form: Any) -> HttpResponse:
        return self.render(form, self.select())
