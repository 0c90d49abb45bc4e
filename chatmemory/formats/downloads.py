"""Exports and other long texts as HTTP responses."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

from chatmemory.formats.exporting import FORMATS, aread_pieces, write_export
from chatmemory.services import Export


def download(export: Export, request: HttpRequest, *, of: str = "") -> StreamingHttpResponse:
    """Return an export as a file; `of` is the scope of a person, for its name."""
    written = FORMATS[export.format]
    return file_response(
        request,
        write_export(export),
        content_type=written.content_type,
        filename=f"chats{'-' if of else ''}{of.replace(':', '-')}.{written.suffix}",
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
