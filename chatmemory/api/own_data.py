"""The views with which a person exports or erases their own data."""

from __future__ import annotations

from django.http import StreamingHttpResponse
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import formats, services
from chatmemory.access import logins, rates
from chatmemory.api.base import View
from chatmemory.api.requests import ERASE_OWN_DATA, EXPORT_QUERY
from chatmemory.errors import BadInput
from chatmemory.services import Erased
from chatmemory.services.audit.entries import BY_OWNER


class MarkdownRenderer(JSONRenderer):
    """Lets `Accept` be text/markdown. It renders only errors, which are JSON."""

    media_type = "text/markdown"


class ExportOwnData(View):
    """All stored sessions of the user, as a file."""

    renderer_classes = (JSONRenderer, MarkdownRenderer)
    http_method_names = ("get",)  # a HEAD would write an audit entry, and make the whole file

    check_read = staticmethod(rates.check_writes)  # it reads everything, and the audit grows

    def get(self, request: Request) -> StreamingHttpResponse:
        logins.check_self_service("export")
        query = self.query(EXPORT_QUERY)
        export = services.begin_export(format=f"own-{query.format}", by=self.actor, reason=BY_OWNER)
        return formats.download(export, request._request)  # noqa: SLF001  # Django's own request


class EraseOwnData(View):
    """Deletes all sessions of the user permanently."""

    def post(self, request: Request) -> Response:
        """Erase, and return the receipt with the keys of the sessions on hold, which stay."""
        logins.check_self_service("erase")
        if self.body(ERASE_OWN_DATA).confirm != self.actor.label:
            raise BadInput(f"confirm must be {self.actor.label!a}.", field="confirm")
        return Response(receipt(services.erase_person(by=self.actor, reason=BY_OWNER)))


def receipt(erased: Erased) -> dict[str, object]:
    """Return the public fields of an erasure."""
    return {
        "sessions": erased.sessions,
        "messages": erased.messages,
        "turns": erased.turns,
        "held": [*erased.held.values()],
    }
