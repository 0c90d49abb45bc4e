"""The view for monitors: whether the app works, and what does not."""

from __future__ import annotations

from django.utils.crypto import constant_time_compare
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory.api.base import PublicView
from chatmemory.conf import settings
from chatmemory.errors import Unauthenticated
from chatmemory.services.health.state import read_health


class Health(PublicView):
    """Whether the app works: 200, else 503. The secret `HEALTH_TOKEN` opens the details."""

    def get(self, request: Request) -> Response:
        has_secret = self._has_secret()
        health = read_health()
        turns, age = health.turns, health.sweep_age
        state: dict[str, object] = {"status": "ok" if health.is_ok else "unavailable"}
        if has_secret:
            state |= {
                "database": turns is not None,
                "channel_layer": health.is_layer_reachable,
                "tables": None if health.wrong_tables is None else not health.wrong_tables,
                "sweep_age": None if age is None else round(age, 1),
                "overdue_turns": None if turns is None else turns.overdue,
                "unclaimed_turns": None if turns is None else turns.unclaimed,
            }
        return Response(state, 200 if health.is_ok else 503)

    def _has_secret(self) -> bool:
        """Whether the request has the monitors' secret. Raises Unauthenticated for another one."""
        scheme, _, given = self.request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        secret = settings.HEALTH_TOKEN
        if not secret or not constant_time_compare(given, secret):
            raise Unauthenticated("This is not the HEALTH_TOKEN.")
        return True

    def get_authenticate_header(self, request: Request) -> str:
        return "Bearer"
