"""The strict JSON parser for request bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from chatmemory import codec
from chatmemory.api.errors import LengthRequired
from chatmemory.errors import BadInput

MAX_BODY_BYTES = 256 * 1024


class StrictJSONParser(BaseParser):
    """Parses at most 256 KiB of UTF-8 JSON.

    Rejects duplicate keys, NaN, and integers that browsers would round.
    """

    media_type = "application/json"

    def parse(  # type: ignore[override]  # any JSON value; requests.read rejects all but objects
        self,
        stream: IO[Any] | Request,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> object:
        body = stream.read(MAX_BODY_BYTES + 1)
        # Some WSGI servers accept chunked bodies, but do not mark their end: Django reads nothing.
        if not body and "HTTP_TRANSFER_ENCODING" in (parser_context or {})["request"].META:
            raise LengthRequired
        if len(body) > MAX_BODY_BYTES:
            raise BadInput(
                f"The body must have at most {MAX_BODY_BYTES} bytes.",
                code="too_large",
                limit=MAX_BODY_BYTES,
            )
        return codec.parse_json(body)
