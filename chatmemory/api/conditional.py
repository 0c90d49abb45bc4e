"""Conditional reads: a client that has the current state of a session gets 304."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import astuple

from django.utils.http import parse_etags
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import __version__
from chatmemory.codec import dump_json
from chatmemory.conf import settings
from chatmemory.models import Head
from chatmemory.services import Actor
from chatmemory.services.sessions import get_head

CACHING = "private, no-cache"
"""A browser may keep the response of its user, but must ask before it shows it."""


def read_session(
    request: Request,
    *,
    key: str,
    by: Actor,
    query: object,
    read: Callable[[], tuple[Head, object]],
) -> Response:
    """Return what `read` returns, or 304 without reading it if the client has it already.

    `query` and the head determine the response. Raises NotFound.
    """
    if "If-None-Match" in request.headers:
        tag = _tag_of_head(query, get_head(session_key=key, by=by))
        if _is_known(request, tag):
            return _tagged(Response(status=304), tag)
    head, fields = read()
    return _tagged(Response(fields), _tag_of_head(query, head))


def content(request: Request, fields: dict[str, object]) -> Response:
    """Return the fields, or 304 if the client has the same fields already."""
    tag = _etag_of(dump_json(fields))
    return _tagged(Response(status=304) if _is_known(request, tag) else Response(fields), tag)


def _tag_of_head(query: object, head: Head) -> str:
    # Every change of what readers see changes the head: revision, last_seq or the running turn.
    # Scope and epoch differ for each user and session, so no other session has the same tag;
    # nor has a session of a restored database, to which `chatmemory_restored` gives another epoch.
    # After an upgrade the same state can have another form, and IMAGE_ORIGINS change the HTML.
    state = (__version__, query, settings.SESSION_TTL, settings.IMAGE_ORIGINS, astuple(head))
    return _etag_of(f"{state!r}")


def _etag_of(state: str) -> str:
    # Weak: it identifies the state, and not the bytes of the response.
    return f'W/"{hashlib.blake2b(state.encode(), digest_size=16).hexdigest()}"'


def _is_known(request: Request, tag: str) -> bool:
    """Compare as RFC 9110, 13.1.2: strong and weak tags are equal."""
    sent = parse_etags(request.headers.get("If-None-Match", ""))
    return sent == ["*"] or tag.removeprefix("W/") in [each.removeprefix("W/") for each in sent]


def _tagged(response: Response, tag: str) -> Response:
    response["ETag"] = tag
    response["Cache-Control"] = CACHING
    return response
