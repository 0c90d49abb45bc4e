"""The view of tickets."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import services
from chatmemory.access import tickets
from chatmemory.api.authentication import SessionLogin
from chatmemory.api.base import View
from chatmemory.api.requests import NOTHING


class TicketList(View):
    """Tickets for clients without cookies."""

    def post(self, request: Request) -> Response:
        """Issue a ticket; `protocols` are the subprotocols that open a websocket with it."""
        self.body(NOTHING)
        ticket = services.issue_ticket(by=self.actor, **self._login_fields())
        protocols = ["chatmemory.v1", f"ticket.{ticket}"]
        fields = {"ticket": ticket, "expires_in": tickets.TICKET_SECONDS, "protocols": protocols}
        return Response(fields, 201)

    def _login_fields(self) -> dict[str, str | None]:
        """Return what the ticket's socket depends on: Django session or credential."""
        if self.visitor is not None:
            return {}
        if isinstance(self.request.successful_authenticator, SessionLogin):
            session = getattr(self.request, "session", None)
            return {"key": None if session is None else session.session_key}
        auth = self.request.auth
        return {"credential": None if auth is None else str(auth)}
