"""Derived rows are stored only if their messages are those that the writer has seen."""

from __future__ import annotations

from functools import partial

import pytest

from chatmemory import derived
from chatmemory.errors import BadInput, NotFound
from chatmemory.services import (
    admit_turn,
    append_messages,
    clear_session,
    purge_session,
    redact_message,
    trim_session,
)
from chatmemory.services.turns.progress import finish_turn
from tests.factories import TALK, make_messages
from tests.locking import concurrently

ROUNDS = 10

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture
def seen(shop):
    append_messages(**TALK, messages=make_messages("one", "two", "three", "four"), create=True)
    return derived.see(**TALK)


def test_rows_are_stored_with_their_session(shop, seen):
    rows = [shop.Summary(low=1, high=2, text="a"), shop.Summary(low=3, high=None, text="b")]
    assert derived.store(seen, rows)
    stored = shop.Summary.objects.order_by("low").values_list("session", "low", "high", "text")
    assert list(stored) == [(seen.session_pk, 1, 2, "a"), (seen.session_pk, 3, None, "b")]


def test_an_append_rejects_no_writer(shop, seen):
    append_messages(**TALK, messages=make_messages("five"))
    assert derived.store(seen, [shop.Summary(low=1, high=4, text="a")])


@pytest.mark.parametrize(
    "change",
    [
        lambda: redact_message(**TALK, seq=4, reason=""),
        lambda: trim_session(**TALK, keep_last=2, reason=""),
        lambda: clear_session(**TALK, reason=""),
        lambda: purge_session(**TALK, reason=""),
    ],
    ids=["redact", "trim", "clear", "purge"],
)
def test_a_removal_rejects_the_writer_that_has_read_the_words(shop, seen, change):
    change()
    assert not derived.store(seen, [shop.Summary(low=1, high=2, text="one two")])
    assert not shop.Summary.objects.exists()


def test_an_edit_rejects_the_writer_whose_rows_it_would_have_deleted(shop, seen):
    claim = admit_turn(
        **TALK, client_id="new", content="3", owner="me", replaces=3, expect_seq=3
    ).claim
    finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": "4"})
    assert not derived.store(seen, [shop.SearchBlock(low=3, high=4, words="three")])
    assert not derived.store(seen, [shop.SearchBlock(low=1, high=None, words="three")])
    assert derived.store(seen, [shop.SearchBlock(low=1, high=2, words="one")])
    assert derived.store(seen, [shop.SearchBlock(low=5, high=6, words="3")])
    assert derived.store(seen, [shop.Summary(low=3, high=4, text="three")])  # for a restore


def test_a_row_replaces_those_that_it_overlaps(shop, seen):
    old = [shop.Summary(low=low, high=high, text="old") for low, high in ((1, 1), (2, 3), (4, 4))]
    assert derived.store(seen, old)
    assert derived.store(seen, [shop.Summary(low=3, high=4, text="new")], replace=True)
    stored = shop.Summary.objects.order_by("low").values_list("low", "high", "text")
    assert list(stored) == [(1, 1, "old"), (3, 4, "new")]


def test_a_rejected_row_replaces_none(shop, seen):
    assert derived.store(seen, [shop.Summary(low=1, high=2, text="old")])
    trim_session(**TALK, keep_last=1, reason="")
    assert not derived.store(seen, [shop.Summary(low=1, high=3, text="new")], replace=True)
    assert shop.Summary.objects.get().text == "old"


def test_a_trim_below_the_range_rejects_no_writer(shop, seen):
    trim_session(**TALK, keep_last=2, reason="")
    assert derived.store(seen, [shop.Summary(low=3, high=4, text="a")])


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2, 1), (1, 5), (5, None), (5, 5)])
def test_a_range_without_messages_is_refused(shop, seen, low, high):
    rows = [shop.Summary(low=1, high=1, text="a"), shop.Summary(low=low, high=high, text="b")]
    with pytest.raises(BadInput) as refused:
        derived.store(seen, rows)
    assert (refused.value.code, refused.value.field) == ("bad_number", "low")
    assert not shop.Summary.objects.exists()


def test_an_unknown_session_is_not_found(shop):
    with pytest.raises(NotFound):
        derived.see(**{**TALK, "session_key": "other"})
    assert not derived.store(derived.Seen(2**40, 1, 0), [shop.Summary(low=1, high=1, text="a")])


@pytest.mark.django_db(transaction=True)
def test_a_writer_that_races_with_a_redaction_stores_no_removed_word(shop, seen):
    for round_number in range(ROUNDS):
        append_messages(**TALK, messages=make_messages("secret"))
        seen = derived.see(**TALK)
        seq = 5 + round_number
        row = shop.Summary(low=1, high=seq, text="secret")
        concurrently(
            partial(redact_message, **TALK, seq=seq, reason=""), partial(derived.store, seen, [row])
        )
        assert not shop.Summary.objects.filter(text="secret").exists()
