"""Stops of turns that change meanwhile."""

from __future__ import annotations

import pytest

from chatmemory import services
from chatmemory.errors import UnknownTurn
from chatmemory.models import Turn
from chatmemory.services.turns.progress import start_turn
from chatmemory.services.turns.stops import stop_running_turn
from tests.factories import TALK, make_session
from tests.locking import second_connection, thread, waits_for_a_lock
from tests.servers import wait_for

pytestmark = [pytest.mark.regression, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("stop", [services.stop_turn, stop_running_turn])
def test_a_turn_that_is_erased_during_its_stop_is_unknown(postgresql, stop):
    make_session()
    claim = services.admit_turn(**TALK, client_id="c1", content="hi", owner="me").claim
    assert start_turn(claim=claim)
    named = {"turn": "c1"} if stop is services.stop_turn else {}
    with second_connection() as other, thread() as call:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("DELETE FROM chatmemory_turn WHERE id = %s", [claim.turn_pk])
        stopped = call(stop, **TALK, **named)
        wait_for(waits_for_a_lock, "the stop does not wait for the turn")
        other.commit()
        with pytest.raises(UnknownTurn):
            stopped.result()
    assert not Turn.objects.exists()
