"""The views with which a person exports or erases their own data."""

from __future__ import annotations

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import services, transfer
from chatmemory.access import rates
from chatmemory.api.base import BY_OWNER, View
from chatmemory.api.requests import ERASE_OWN_DATA, EXPORT_QUERY
from chatmemory.conf import settings
from chatmemory.errors import BadInput, Forbidden
from chatmemory.models import Session


def _check_allowed(act: str) -> None:
    if act not in settings.SELF_SERVICE:
        raise Forbidden(f"Ask an operator to {act} your data.")


class ExportOwnData(View):
    """All stored sessions of the user, as a file."""

    http_method_names = ("get",)  # a HEAD would write an audit entry, and make the whole file

    check_read = staticmethod(rates.check_writes)  # it reads everything, and the audit grows

    def get(self, request: Request) -> StreamingHttpResponse:
        _check_allowed("export")
        query = self.query(EXPORT_QUERY)
        form = f"own-{query.form}"
        export = services.begin_export(form=form, by=self.actor, reason=BY_OWNER)
        # An ASGI server would read all of a sync iterator into memory.
        is_async = isinstance(request._request, ASGIRequest)  # noqa: SLF001  # Django's own request
        text = transfer.awrite_export(export) if is_async else transfer.write_export(export)
        written = transfer.FORMS[form]
        response = StreamingHttpResponse(
            text, content_type=f"{written.content_type}; charset=utf-8"
        )
        response["Content-Disposition"] = f'attachment; filename="chats.{written.suffix}"'
        return response


class EraseOwnData(View):
    """Deletes all sessions of the user permanently."""

    def post(self, request: Request) -> Response:
        """Erase, and return the receipt with the keys of the sessions on hold, which stay."""
        _check_allowed("erase")
        if self.body(ERASE_OWN_DATA).confirm != self.actor.label:
            raise BadInput("confirm must be your username.", field="confirm")
        erased = services.erase_person(by=self.actor, reason=BY_OWNER)
        held = Session.objects.filter(pk__in=erased.held).order_by("pk")
        return Response(
            {
                "sessions": erased.sessions,
                "messages": erased.messages,
                "turns": erased.turns,
                "held": list(held.values_list("key", flat=True)),
            }
        )
