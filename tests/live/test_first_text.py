"""The time to the first text: measured once, and stored with the end of the turn."""

from __future__ import annotations

import time

import pytest

from chatmemory import services
from chatmemory.live.run import MAX_MILLISECONDS, Run
from chatmemory.live.runner import runner
from chatmemory.live.texts import LiveText
from chatmemory.models import Turn
from chatmemory.services.turns.claims import Claim
from tests import responders_for_tests
from tests.servers import live_process, person_with_talk, use_responder, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process


def ended(person, settings, responder):
    """Return the turn of a message after its end, with this responder."""
    use_responder(settings, responder)
    runner.enable()
    turn = services.admit_turn(**person.talk, client_id="c1", content="hi", owner=runner.owner)
    runner.launch(turn.claim)
    wait_for(lambda: Turn.objects.filter(ended_at__isnull=False).exists(), "the turn does not end")
    return Turn.objects.get()


@pytest.mark.parametrize(
    ("responder", "status"),
    [("echo", "complete"), ("failing", "failed"), ("with_tools", "complete")],
)
def test_the_first_text_precedes_the_end(ann, live, settings, responder, status):
    turn = ended(ann, settings, responder)
    assert turn.status == status
    duration = turn.ended_at - turn.started_at
    assert 0 <= turn.first_text_ms <= duration.total_seconds() * 1000 + 1000


def test_a_reply_in_one_piece_has_the_time_of_that_piece(ann, live, settings):
    assert ended(ann, settings, "counting").first_text_ms is not None


def test_a_reply_without_text_has_no_time(ann, live, settings):
    responders_for_tests.GO.set()
    turn = ended(ann, settings, "silent")
    assert (turn.status, turn.first_text_ms) == ("complete", None)


def run_since(seconds):
    claim = Claim(
        turn_pk=1,
        client_id="c1",
        session_pk=1,
        scope="server",
        key="talk",
        epoch=1,
        fence=0,
        user_seq=1,
        owner="me",
    )
    return Run(claim, LiveText("c1", 0), began_at=time.monotonic() - seconds)


def test_only_the_first_text_counts():
    run = run_since(7)
    run.add_text("")
    assert run.first_text_ms is None
    run.add_text("a")
    first = run.first_text_ms
    assert 7_000 <= first < 60_000
    run.began_at -= 100
    run.add_text("b")
    assert run.first_text_ms == first


def test_a_time_never_exceeds_its_column():
    run = run_since(MAX_MILLISECONDS)
    run.add_text("a")
    assert run.first_text_ms == MAX_MILLISECONDS
