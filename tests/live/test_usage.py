"""The usage of a turn: the sum of what the model reported with each of its messages."""

from __future__ import annotations

import pytest

from chatmemory import codec, services
from chatmemory.live.runner import runner
from chatmemory.models import Turn
from tests.servers import live_process, person_with_talk, use_responder, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process


def test_a_turn_with_tools_sums_the_usage_of_its_messages(ann, live, settings):
    use_responder(settings, "counting_steps")
    runner.enable()
    turn = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner=runner.owner)
    runner.launch(turn.claim)
    wait_for(lambda: Turn.objects.filter(ended_at__isnull=False).exists(), "the turn does not end")
    usage = codec.parse_usage(Turn.objects.get().usage)
    assert usage == {
        "input_tokens": 20,
        "output_tokens": 8,
        "input_token_details": {"cache_read": 8},
    }
