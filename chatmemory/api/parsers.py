"""JSON from people, read strictly."""

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
    """UTF-8 JSON of at most 256 KiB: no duplicate keys, NaN or numbers that browsers round."""

    media_type = "application/json"

    def parse(  # type: ignore[override]  # not only objects: the shape refuses the others
        self,
        stream: IO[Any] | Request,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> object:
        body = stream.read(MAX_BODY_BYTES + 1)
        # Servers of WSGI that take a body in chunks leave its end to themselves; Django reads none.
        if not body and "HTTP_TRANSFER_ENCODING" in (parser_context or {})["request"].META:
            raise LengthRequired
        if len(body) > MAX_BODY_BYTES:
            raise BadInput(
                f"The body has more than {MAX_BODY_BYTES} bytes.",
                code="too_large",
                limit=MAX_BODY_BYTES,
            )
        return codec.parse_json(body)
