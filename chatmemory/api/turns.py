"""The views of turns."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory import codec, services
from chatmemory.api.base import View
from chatmemory.api.requests import STOP_TURN
from chatmemory.services.turns.stops import stop_running_turn


class TurnList(View):
    """The running turn, then the waiting turns in the order in which they start."""

    def get(self, request: Request, key: str) -> Response:
        turns = services.list_turns(session_key=codec.key_of_address(key), by=self.actor)
        found = [{**asdict(turn), "since": turn.since.isoformat()} for turn in turns]
        return Response({"turns": found})


class TurnDetail(View):
    """One turn, whether it has ended or not."""

    def get(self, request: Request, key: str, turn: str) -> Response:
        state = services.get_turn(
            session_key=codec.key_of_address(key), turn=codec.turn_of_address(turn), by=self.actor
        )
        return Response(asdict(state))


class Stop(View):
    """Stops a turn."""

    def post(self, request: Request, key: str) -> Response:
        """Stop the named turn, or the running one; without one both fields are null."""
        name = self.body(STOP_TURN).turn
        where: Any = {"session_key": codec.key_of_address(key), "by": self.actor}
        if name is not None:
            return Response({"turn": name, "status": services.stop_turn(**where, turn=name)})
        stopped = stop_running_turn(**where)
        return Response({"turn": None, "status": None} if stopped is None else asdict(stopped))
