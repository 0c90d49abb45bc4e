"""The check of the stored messages."""

from __future__ import annotations

import pytest
from django.db.models import F

from chatmemory import services
from chatmemory.models import Message, Session
from tests.factories import TALK, make_session
from tests.programs.speed.texts import batches_of, find_faults, plain

pytestmark = pytest.mark.django_db
EXPECTED = batches_of([2, 1])


@pytest.fixture(autouse=True)
def _stored():
    make_session()
    for batch in EXPECTED:
        services.append_messages(**TALK, messages=plain(batch))


def test_what_was_stored_has_no_faults():
    assert find_faults("talk", EXPECTED) == []


def test_lost_messages_are_found():
    assert find_faults("talk", batches_of([3, 1])) == ["1 batches lost: '0.2.0'"]


def test_duplicates_are_found():
    services.append_messages(**TALK, messages=plain(EXPECTED[0]))
    assert find_faults("talk", EXPECTED) == ["1 batches duplicate: '0.0.0'"]


def test_interleaved_messages_are_found():
    rows = Message.stored.order_by("seq")
    texts = [row.text for row in rows]
    for row, text in zip(rows, [texts[0], *texts[2:], texts[1]], strict=True):
        Message.stored.filter(pk=row.pk).update(text=text)
    faults = find_faults("talk", EXPECTED)
    assert any("interleaved or changed" in fault for fault in faults)
    assert any("lost" in fault for fault in faults)


def test_gaps_are_found():
    Message.stored.filter(seq__gte=3).update(seq=F("seq") + 10)
    assert "the numbers of the rows have gaps" in find_faults("talk", EXPECTED)


def test_wrong_counters_are_found():
    Session.objects.update(last_seq=7, tokens=F("tokens") + 1)
    faults = find_faults("talk", EXPECTED)
    assert "last_seq is 7, but there are 6 rows" in faults
    assert any("tokens" in fault for fault in faults)
