"""The view of feedback on the reply of a turn."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import codec, services
from chatmemory.api.base import View
from chatmemory.api.requests import SET_FEEDBACK


class TurnFeedback(View):
    """The user's feedback on one turn."""

    def put(self, request: Request, key: str, turn: str) -> Response:
        body = self.body(SET_FEEDBACK)
        return self._set(key, turn, body.value, body.reason)

    def delete(self, request: Request, key: str, turn: str) -> Response:
        """Withdraw the feedback, if there is any."""
        return self._set(key, turn, None)

    def _set(self, key: str, turn: str, value: int | None, reason: str = "") -> Response:
        services.set_feedback(
            session_key=codec.key_of_address(key),
            by=self.actor,
            turn=codec.turn_of_address(turn),
            value=value,
            reason=reason,
        )
        return Response({"turn": turn, "value": value, "reason": reason})
