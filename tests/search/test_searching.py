"""The search finds each visible message, with and without blocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from chatmemory.errors import BadInput, NotFound, RateLimited
from chatmemory.models import Message, Session
from chatmemory.search import indexing, models, reading, search_messages, searching
from chatmemory.search.indexing import index_all, index_session
from chatmemory.search.models import SearchBlock
from chatmemory.services import (
    Actor,
    append_messages,
    clear_session,
    purge_session,
    redact_message,
    restore_session,
    trim_session,
)
from tests.factories import BY, TALK, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

TEXTS = (
    "My invoice of May was wrong.",
    "Which invoice do you mean?",
    "Number 4711, for the green kettle.",
    "The kettle was charged twice, I am sorry.",
    "Please refund it.",
)


def talk(*texts, key="talk", by=BY, scope="server"):
    messages = [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(texts)
    ]
    append_messages(session_key=key, by=by, scope=scope, messages=messages, create=True)
    return Session.objects.get(key=key)


@pytest.fixture(params=[False, True], ids=["without-blocks", "with-blocks"])
def session(request):
    session = talk(*TEXTS)
    if request.param:
        assert index_session(session.pk).blocks == 1
    return session


def found(query, **filters):
    given = {"by": BY, "scope": "server", **filters}
    return [hit.seq for hit in search_messages(query=query, **given).hits]


def test_messages_are_found_by_any_of_their_words_in_other_forms(session):
    assert set(found("invoices")) == {1, 2}
    assert set(found("KETTLES refunding")) == {3, 4, 5}
    assert found("elephant") == []


def test_a_hit_states_where_its_words_are(session):
    (hit,) = search_messages(by=BY, scope="server", query="number 4711").hits
    assert (hit.session_key, hit.scope, hit.seq, hit.role) == ("talk", "server", 3, "user")
    assert [hit.snippet[start:end] for start, end in hit.ranges] == ["Number", "4711"]
    assert hit.score > 0
    assert hit.why.own > 0


def test_the_newest_messages_with_all_words_come_first(session):
    assert found("kettle", order="newest") == [4, 3]
    assert found("kettle green", order="newest") == [3]


def test_a_prefix_finds_words_that_begin_so(session):
    assert set(found("inv", mode="prefix")) == {1, 2}
    assert found("inv") == []


def test_a_prefix_is_found_if_the_stem_has_other_letters(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SEARCH_LANGUAGE": "german"}
    talk("Eine Büroklammer", "Neue Bücherregale")
    assert found("büro", mode="prefix") == [1]
    assert found("bücherre", mode="prefix") == [2]
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SEARCH_LANGUAGE": "english"}
    talk("I am studying", key="other")
    assert found("studyi", mode="prefix") == [1]


def test_the_newest_messages_have_the_prefix_too():
    talk("A green run", "A green runner")
    assert found("green runn", mode="prefix", order="newest") == [2]


def test_a_phrase_is_found_only_as_it_is(session):
    assert found("charged twice", mode="phrase") == [4]
    assert found("twice charged", mode="phrase") == []


def test_filters_select_hits(session):
    assert found("kettle", role="user") == [3]
    later = datetime.now(UTC) + timedelta(days=1)
    assert found("kettle", after=later) == []
    assert set(found("kettle", before=later)) == {3, 4}


def test_a_new_message_is_found_without_its_block(session):
    append_messages(**TALK, messages=[{"role": "user", "content": "An elephant!"}])
    assert found("elephant") == [6]


def test_system_messages_are_not_found(session):
    append_messages(**TALK, messages=[{"role": "system", "content": "Never sell an elephant."}])
    index_session(session.pk)
    assert found("elephant") == []


def test_hidden_messages_are_not_found_until_they_are_restored(session):
    entry = trim_session(**TALK, keep_last=1, reason="")
    assert found("invoice kettle") == []
    assert found("refund") == [5]
    restore_session(entry_pk=entry.pk, by=BY, scope="server", reason="")
    assert set(found("invoice kettle")) == {1, 2, 3, 4}


@pytest.mark.parametrize("remove", [clear_session, purge_session])
def test_a_removed_history_is_not_found(session, remove):
    remove(**TALK, reason="")
    assert found("invoice kettle") == []


def test_redacted_words_are_not_found_and_in_no_block(session):
    redact_message(**TALK, seq=3, reason="")
    assert found("4711 green") == []
    assert set(found("kettle")) == {4}
    index_session(session.pk)
    assert set(found("kettle")) == {4}
    assert found("4711 green") == []


def test_hidden_messages_change_no_score(session):
    def scores():
        hits = search_messages(by=BY, scope="server", query="refund").hits
        return [(hit.seq, hit.score) for hit in hits]

    append_messages(**TALK, messages=[{"role": "user", "content": "A refund, a refund!"}])
    trim_session(**TALK, keep_last=2, reason="")
    with_hidden = scores()
    SearchBlock.objects.all().delete()
    assert with_hidden == scores()
    assert len(with_hidden) == 2


def test_blocks_of_hidden_messages_are_not_read(monkeypatch):
    for module in (models, reading, indexing):
        monkeypatch.setattr(module, "BLOCK_ROWS", 2)
    session = talk("A kettle", "Yes", "A kettle", "Yes", "A kettle and a refund", "A refund")
    index_session(session.pk)
    trim_session(**TALK, keep_last=2, reason="")
    search = {"by": BY, "scope": "server", "query": "kettle refund"}
    expected = search_messages(**search)
    monkeypatch.setattr(reading, "MAX_BYTES", 1)
    monkeypatch.setattr(reading, "BATCH_BLOCKS", 1)
    assert search_messages(**search) == expected
    assert not expected.partial


def test_a_search_reaches_only_its_scope(session):
    ann, bob = make_user("ann"), make_user("bob")
    talk("The kettle of Ann", key="of-ann", by=Actor.user(ann), scope=None)
    hits = search_messages(by=Actor.user(ann), query="kettle").hits
    assert [hit.session_key for hit in hits] == ["of-ann"]
    assert not search_messages(by=Actor.user(bob), query="kettle").hits
    with pytest.raises(NotFound):
        search_messages(by=Actor.user(bob), query="kettle", session_key="of-ann")
    with pytest.raises(TypeError):
        search_messages(by=Actor.user(bob), query="kettle", scope="server")


def test_one_session_can_be_searched(session):
    talk("Another kettle", key="other")
    assert len(found("kettle")) == 3
    assert found("kettle", session_key="other") == [1]


def test_pages_continue_where_the_last_one_ended(session):
    for number in range(7):
        talk(f"kettle {number}", key=f"chat-{number}")
    keys, cursor = [], None
    for _ in range(5):
        page = search_messages(by=BY, scope="server", query="kettle", limit=2, cursor=cursor)
        keys += [(hit.session_key, hit.seq) for hit in page.hits]
        cursor = page.cursor
        assert not page.partial
    assert cursor is None
    assert sorted(keys) == sorted({*keys})
    assert len(keys) == 9


def found_in_parts(limit=20):
    """Search until nothing is left; return sessions and seqs, and the number of pages."""
    keys, cursor, pages = [], None, 0
    while pages < 30 and (pages == 0 or cursor is not None):
        page = search_messages(by=BY, scope="server", query="kettle", cursor=cursor, limit=limit)
        keys += [(hit.session_key, hit.seq) for hit in page.hits]
        cursor, pages = page.cursor, pages + 1
        assert cursor is not None or not page.partial
    return sorted(keys), pages


LARGE_SCOPE = [*((f"chat-{n}", 1) for n in range(7)), ("talk", 3), ("talk", 4)]


def test_a_large_scope_is_searched_in_parts(session, monkeypatch):
    for number in range(7):
        talk(f"kettle {number}", "yes", "no", key=f"chat-{number}")
    monkeypatch.setattr(reading, "MAX_ROWS", 7)
    monkeypatch.setattr(reading, "MAX_UNINDEXED", 4)
    monkeypatch.setattr(reading, "MAX_SESSIONS", 2)
    keys, pages = found_in_parts()
    assert keys == LARGE_SCOPE
    assert pages > 3


@pytest.mark.parametrize(
    ("module", "name"), [(reading, "MAX_BYTES"), (searching, "MAX_SECONDS")], ids=["bytes", "time"]
)
@pytest.mark.slow
def test_large_blocks_are_searched_in_parts(session, monkeypatch, module, name):
    for number in range(7):
        talk(f"kettle {number}", "yes", "no", key=f"chat-{number}")
    index_all()
    monkeypatch.setattr(reading, "BATCH_BLOCKS", 2)
    monkeypatch.setattr(module, name, 0)
    keys, pages = found_in_parts()
    assert keys == LARGE_SCOPE
    assert pages == 4  # of eight blocks


def test_a_part_ends_behind_any_block_of_a_session(session, monkeypatch):
    append_messages(**TALK, messages=[{"role": "user", "content": "A kettle."}] * 300)
    index_session(session.pk)
    append_messages(**TALK, messages=[{"role": "user", "content": "A kettle."}])
    monkeypatch.setattr(reading, "BATCH_BLOCKS", 1)
    monkeypatch.setattr(reading, "MAX_BYTES", 1)
    keys, pages = found_in_parts(limit=50)
    assert keys == [("talk", seq) for seq in (3, 4, *range(6, 307))]
    assert pages == 7  # the parts have 50, 128 and 125 hits


def test_a_damaged_block_counts_as_missing(session):
    SearchBlock.objects.update(postings=b"\1" * 64)
    assert set(found("kettle")) == {3, 4}
    SearchBlock.objects.all().delete()
    index_session(session.pk)
    block = SearchBlock.objects.get()
    postings = bytearray(block.postings)
    postings[-40] ^= 1
    SearchBlock.objects.update(postings=bytes(postings))
    assert set(found("kettle invoice 4711 refund")) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        ({"query": ""}, "bad_field", "query"),
        ({"query": "x" * 501}, "bad_field", "query"),
        ({"query": " ?! "}, "empty", "query"),
        ({"query": "a\0b"}, "bad_text", "query"),
        ({"mode": "regex"}, "bad_field", "mode"),
        ({"order": "oldest"}, "bad_field", "order"),
        ({"limit": 0}, "bad_field", "limit"),
        ({"limit": 51}, "bad_field", "limit"),
        ({"role": "system"}, "bad_field", "role"),
        ({"before": datetime(2026, 1, 1)}, "bad_field", "before"),  # noqa: DTZ001
        ({"cursor": "1.2"}, "bad_field", "cursor"),
        ({"cursor": "f" * 16 + ".1.0"}, "bad_field", "cursor"),
    ],
    ids=[
        "no-query",
        "long",
        "no-words",
        "nul",
        "mode",
        "order",
        "no-hits",
        "many-hits",
        "role",
        "naive-time",
        "cursor",
        "high-cursor",
    ],
)
def test_bad_input_is_refused(arguments, code, field):
    with pytest.raises(BadInput) as refusal:
        search_messages(**{"by": BY, "scope": "server", "query": "kettle", **arguments})
    assert (refusal.value.code, refusal.value.field) == (code, field)


def test_a_person_can_search_so_often(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SEARCHES_PER_MINUTE": 2}
    by = Actor.user(make_user("ann"))
    for _ in range(2):
        search_messages(by=by, query="kettle")
    with pytest.raises(RateLimited):
        search_messages(by=by, query="kettle")


def test_a_search_takes_no_lock_and_few_statements(session, django_assert_num_queries):
    with django_assert_num_queries(4):  # sessions, blocks, their bytes or the messages, hits
        search_messages(by=BY, scope="server", query="kettle")


def test_a_removal_between_ranking_and_reading_is_respected(session, monkeypatch):
    ranked = searching.Search._rank

    def rank_and_redact(self, limit):
        result = ranked(self, limit)
        redact_message(**TALK, seq=3, reason="")
        return result

    monkeypatch.setattr(searching.Search, "_rank", rank_and_redact)
    assert found("kettle") == [4]
    assert Message.objects.get(seq=3).redacted
