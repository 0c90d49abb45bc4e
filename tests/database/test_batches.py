"""Batches of sessions, and the sizes of batches that a host chooses."""

from __future__ import annotations

import pytest

from chatmemory.database import batches as module
from chatmemory.database.batches import batches, in_pages
from chatmemory.models import Session
from chatmemory.services.audit.seals import seal_audit, verify_audit
from chatmemory.services.integrity.database_restore import recover_restored_database
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from tests.factories import BY, make_session

pytestmark = pytest.mark.django_db


def test_sessions_created_meanwhile_are_in_no_batch():
    pks = [make_session(f"talk {number}").pk for number in range(5)]
    found = []
    for batch in batches(Session.objects.all(), 2):
        make_session(f"later {len(found)}")
        found.append(batch)
    assert found == [pks[:2], pks[2:4], pks[4:]]


@pytest.mark.regression
@pytest.mark.parametrize(
    "call",
    [
        lambda size: seal_audit(chunk_size=size),
        lambda size: verify_audit(chunk_size=size),
        lambda size: list(check_integrity(batch_size=size)),
        lambda size: recover_restored_database(by=BY, reason="", batch_size=size),
        lambda size: vacuum(chunk=size),
    ],
    ids=["seal", "verify", "check", "recover", "vacuum"],
)
@pytest.mark.parametrize("size", [0, -1])
def test_an_empty_batch_is_refused_and_not_taken_for_the_end(call, size):
    with pytest.raises(ValueError, match=f"must be 1 .*, not {size}"):
        call(size)


@pytest.mark.regression
def test_a_recovery_locks_at_most_100_sessions_in_one_transaction():
    with pytest.raises(ValueError, match="batch_size must be 1 to 100, not 101"):
        recover_restored_database(by=BY, reason="", batch_size=101)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_rows_are_read_in_pages_in_the_order_of_a_column(monkeypatch, size):
    monkeypatch.setattr(module, "PAGE_ROWS", size)
    made = [make_session(key) for key in ("b", "a", "c")]
    assert list(in_pages(Session.objects.all())) == made
    assert list(in_pages(Session.objects.all(), "-pk")) == made[::-1]
    keys = Session.objects.values_list("key", flat=True).distinct()
    assert list(in_pages(keys, "key", str)) == ["a", "b", "c"]
    assert list(in_pages(Session.objects.none())) == []
