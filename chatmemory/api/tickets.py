"""The view of tickets."""

from __future__ import annotations

from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings

from chatmemory import services
from chatmemory.access import tickets
from chatmemory.api.base import SessionLogin, View
from chatmemory.api.requests import NOTHING


class TicketList(View):
    """Tickets for clients without cookies.

    They can also authenticate with the host's DEFAULT_AUTHENTICATION_CLASSES.
    """

    def get_authenticators(self) -> list[BaseAuthentication]:
        # Only if the host sets them: REST framework's default includes passwords.
        is_set = "DEFAULT_AUTHENTICATION_CLASSES" in api_settings.user_settings
        others: Any = api_settings.DEFAULT_AUTHENTICATION_CLASSES if is_set else ()
        return [SessionLogin(), *(authenticator() for authenticator in others)]

    def post(self, request: Request) -> Response:
        """Issue a ticket; `protocols` are the subprotocols that open a websocket with it."""
        self.body(NOTHING)
        ticket = services.issue_ticket(by=self.actor, **self._login())
        protocols = ["chatmemory.v1", f"ticket.{ticket}"]
        fields = {"ticket": ticket, "expires_in": tickets.TICKET_SECONDS, "protocols": protocols}
        return Response(fields, 201)

    def _login(self) -> dict[str, str | None]:
        """Return the login on which the ticket's socket depends: Django session or credential."""
        if isinstance(self.request.successful_authenticator, SessionLogin):
            session = getattr(self.request, "session", None)
            return {"key": None if session is None else session.session_key}
        auth = self.request.auth
        return {"credential": None if auth is None else str(auth)}
