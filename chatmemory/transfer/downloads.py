"""Exports and other long texts as HTTP responses."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

from chatmemory.services import Export
from chatmemory.transfer.exporting import FORMS, aread_pieces, write_export


def download(export: Export, request: HttpRequest, *, of: str = "") -> StreamingHttpResponse:
    """Return an export as a file; `of` is the scope of a person, for its name."""
    form = FORMS[export.form]
    return file_response(
        request,
        write_export(export),
        content_type=form.content_type,
        filename=f"chats{'-' if of else ''}{of.replace(':', '-')}.{form.suffix}",
    )


def file_response(
    request: HttpRequest, text: Iterator[str], *, content_type: str, filename: str
) -> StreamingHttpResponse:
    """Return a text as a file to download; memory does not grow with its length."""
    # An ASGI server would read all of a sync iterator into memory.
    pieces = aread_pieces(text) if isinstance(request, ASGIRequest) else text
    response = StreamingHttpResponse(pieces, content_type=f"{content_type}; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{filename}"'
    return response
