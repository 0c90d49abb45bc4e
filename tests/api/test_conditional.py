"""Conditional reads and the catch-up by cursor over REST."""

from __future__ import annotations

import json

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.api import conditional
from chatmemory.models import Message, Session, Turn
from chatmemory.protocol import Cursor
from chatmemory.services import Actor, catch_up
from chatmemory.services.integrity.database_restore import recover_restored_database
from chatmemory.services.turns import progress
from tests.api.calls import JSON, MESSAGES, SESSIONS, TALK, problem, send, talk_of
from tests.factories import make_messages, make_session, make_user

pytestmark = pytest.mark.django_db

CACHED = (SESSIONS, TALK, MESSAGES, f"{MESSAGES}?after=1", f"{MESSAGES}?before=2&limit=1")


@pytest.fixture
def append(ann, talk):
    """Return a function that appends messages to Ann's session."""

    def append_texts(*texts):
        return services.append_messages(
            session_key="talk", by=Actor.user(ann), messages=make_messages(*texts)
        )

    return append_texts


def tables_of(api, address, **headers):
    """Return the status of a GET, and our tables that its statements name."""
    with CaptureQueriesContext(connection) as queries:
        answer = api.get(address, headers=headers)
    statements = [query["sql"] for query in queries if "chatmemory_" in query["sql"]]
    named = {"message", "turn", "session"}
    return answer.status_code, [
        {name for name in named if f"chatmemory_{name}" in sql} for sql in statements
    ]


# ETags


@pytest.mark.parametrize("address", CACHED)
def test_an_unchanged_read_is_not_sent_again(api, talk, address):
    first = api.get(address)
    assert first["ETag"].startswith('W/"')
    assert first["Cache-Control"] == "private, no-cache"
    assert "Cookie" in first["Vary"]
    for known in (first["ETag"], first["ETag"].removeprefix("W/"), f'"x", {first["ETag"]}', "*"):
        again = api.get(address, headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert (again["ETag"], again["Cache-Control"]) == (first["ETag"], "private, no-cache")
    for other in ('W/"x"', "x", '"', first["ETag"].strip('W/"')):
        assert api.get(address, headers={"if-none-match": other}).status_code == 200


@pytest.mark.parametrize("address", CACHED[1:])
def test_an_unchanged_session_is_answered_without_its_rows(api, talk, address):
    tag = api.get(address)["ETag"]
    status, tables = tables_of(api, address, **{"if-none-match": tag})
    assert (status, tables) == (304, [{"session", "turn"}])


def rename(ann):
    services.update_session(session_key="talk", by=Actor.user(ann), title="new")


def pin(ann):
    services.update_session(session_key="talk", by=Actor.user(ann), pinned=True)


def add_rows(ann):
    where = {"session_key": "talk", "by": Actor.user(ann)}
    services.append_messages(**where, messages=make_messages("x"))


def redact(ann):
    where = {"session_key": "talk", "by": Actor.user(ann), "reason": ""}
    services.redact_message(**where, seq=2)


def clear(ann):
    services.clear_session(session_key="talk", by=Actor.user(ann), reason="")


def hold(ann):
    operator = Actor("operator", "7", "olga")
    where = {"session_key": "talk", "by": operator, "scope": services.user_scope(ann)}
    services.hold_session(**where, reason="court")


def queue(ann):
    where = {"session_key": "talk", "by": Actor.user(ann)}
    services.admit_turn(**where, client_id="c9", content="hi")


CHANGES = (rename, pin, add_rows, redact, clear, hold, queue)


@pytest.mark.parametrize("address", CACHED)
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_session_is_sent(api, ann, talk, address, change):
    tag = api.get(address)["ETag"]
    change(ann)
    changed = api.get(address, headers={"if-none-match": tag})
    assert (changed.status_code, changed["ETag"] != tag) == (200, True)


@pytest.mark.parametrize("address", [TALK, MESSAGES])
def test_the_start_of_a_run_is_sent(api, ann, talk, address):
    where = {"session_key": "talk", "by": Actor.user(ann)}
    claim = services.admit_turn(**where, client_id="c1", content="hi", owner="another").claim
    tag = api.get(address)["ETag"]
    progress.start_turn(claim=claim)
    assert api.get(address, headers={"if-none-match": tag}).status_code == 200


def test_each_query_and_each_user_has_its_own_tag(api, talk):
    bob = make_user("bob")
    foreign = talk_of(bob)
    Session.objects.filter(pk=foreign.pk).update(epoch=talk.epoch, created_at=talk.created_at)
    other = Client()
    other.force_login(bob)
    addresses = (
        TALK,
        MESSAGES,
        f"{MESSAGES}?limit=1",
        f"{MESSAGES}?after=0",
        f"{MESSAGES}?before=9",
    )
    tags = [client.get(address)["ETag"] for client in (api, other) for address in addresses]
    assert len(set(tags)) == len(tags)
    for address, tag in zip(addresses, tags, strict=False):
        assert other.get(address, headers={"if-none-match": tag}).status_code == 200


@pytest.mark.parametrize("address", CACHED[1:])
def test_another_version_has_other_tags_since_an_answer_can_have_another_form(
    api, talk, address, monkeypatch
):
    tag = api.get(address)["ETag"]
    monkeypatch.setattr(conditional, "__version__", "99")
    assert api.get(address, headers={"if-none-match": tag}).status_code == 200


@pytest.mark.parametrize("address", CACHED[1:])
def test_a_restored_database_has_other_tags_also_with_equal_numbers(api, ann, talk, address):
    rename(ann)
    tag = api.get(address)["ETag"]
    Session.objects.update(revision=talk.revision - 1, title="new")  # the backup
    recover_restored_database(by=Actor.server("test"), reason="")
    pin(ann)
    assert Session.objects.get().revision == talk.revision + 1
    assert api.get(address, headers={"if-none-match": tag}).status_code == 200


def test_a_removed_session_is_not_found_for_a_client_that_knows_it(api, ann, talk):
    tag = api.get(TALK)["ETag"]
    api.delete(TALK)
    assert problem(api.get(TALK, headers={"if-none-match": tag}))[:2] == (404, "not_found")
    assert problem(api.get(TALK, headers={"if-none-match": "*"}))[:2] == (404, "not_found")


@pytest.mark.regression
@pytest.mark.parametrize(
    ("method", "address", "body"),
    [
        ("POST", SESSIONS, {}),
        ("PATCH", TALK, {"title": "new"}),
        ("POST", MESSAGES, {"client_id": "c1", "text": "hi"}),
        ("PUT", f"{TALK}turns/c1/feedback/", {"value": 1}),
        ("DELETE", f"{TALK}turns/c1/feedback/", None),
        ("DELETE", TALK, None),
    ],
)
def test_a_write_on_the_condition_of_a_tag_changes_nothing(api, talk, method, address, body):
    """A weak tag never matches If-Match. A client that sends it must not lose another's change."""
    tag = api.get(TALK)["ETag"]
    data = b"" if body is None else json.dumps(body)
    for condition in (tag, tag.removeprefix("W/"), '"other"', f"{tag}, *", ""):
        headers = {"if-match": condition}
        answer = api.generic(method, address, data, JSON, headers=headers)
        assert problem(answer) == (412, "precondition_failed", None)
    assert api.get(TALK, headers={"if-none-match": tag, "if-match": tag}).status_code == 304
    assert Session.objects.count() == 1
    assert not Turn.objects.exists()


def test_a_write_on_the_condition_that_the_session_exists_is_done(api, talk):
    sent = {"content_type": JSON, "headers": {"if-match": "*"}}
    assert api.patch(TALK, {"title": "new"}, **sent).status_code == 200
    assert api.patch("/api/sessions/other/", {"title": "new"}, **sent).status_code == 404


def test_other_responses_are_not_stored(api, talk):
    answers = (
        api.get("/api/sessions/other/"),
        send(api),
        Client().get(TALK),
        api.get(f"{MESSAGES}1/"),
        api.patch(TALK, {"title": "x"}, content_type=JSON),
        api.delete(TALK),
        api.get("/api/removed/"),
    )
    for answer in answers:
        assert answer["Cache-Control"] == "no-store"
        assert "ETag" not in answer


def test_a_change_between_the_two_reads_of_a_session_is_sent_later(api, ann, talk, monkeypatch):
    get_session = services.get_session

    def pin_first(**where):
        pin(ann)
        return get_session(**where)

    monkeypatch.setattr(services, "get_session", pin_first)
    tag = api.get(TALK)["ETag"]
    monkeypatch.undo()
    assert api.get(TALK, headers={"if-none-match": tag}).json()["pinned"] is True


# Catch-up


def missed(api, cursor, **query):
    """Return the answer without what is the same in each page, and its seqs."""
    answer = api.get(MESSAGES, {"cursor": cursor, **query})
    assert answer.status_code == 200
    page = answer.json()
    return page, [message["seq"] for message in page["messages"]]


def test_a_page_without_a_cursor_begins_to_follow(api, append):
    page = api.get(MESSAGES).json()
    assert (page["reset"], page["more"]) == (None, False)
    assert page["session"].items() >= {"key": "talk", "running": None, "waiting": 0}.items()
    assert missed(api, page["cursor"])[1] == []
    append("c", "d")
    page, seqs = missed(api, page["cursor"])
    assert (seqs, page["reset"], page["last_seq"]) == ([3, 4], None, 4)
    assert missed(api, page["cursor"]) == ({**page, "messages": []}, [])


def test_changed_rows_come_before_new_ones(api, ann, append):
    cursor = api.get(MESSAGES).json()["cursor"]
    append("c")
    redact(ann)
    page, seqs = missed(api, cursor)
    assert seqs == [2, 3]
    assert page["messages"][0]["redacted"] is True
    assert missed(api, page["cursor"])[1] == []


def test_a_cursor_of_a_socket_and_one_of_rest_are_equal(api, talk):
    expected = Cursor(talk.pk, talk.epoch, 2, talk.revision, 1)
    assert api.get(MESSAGES).json()["cursor"].startswith(str(expected))
    assert Cursor.parse(api.get(MESSAGES).json()["cursor"]) is not None


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_lead_to_the_head_and_omit_no_row(api, ann, append, limit):
    append(*"cdef")
    cursor = api.get(MESSAGES).json()["cursor"]
    append(*"ghij")
    # Several rows changed with the same revision, as in a repair.
    Message.stored.filter(seq__in=[1, 2, 3, 5]).update(revision=7)
    Message.stored.filter(seq=4).update(revision=6)
    Session.objects.update(revision=8, rows_revision=7)
    found, more = [], True
    while more:
        page, seqs = missed(api, cursor, limit=limit)
        assert len(seqs) <= limit
        found += seqs
        cursor, more = page["cursor"], page["more"]
    assert found == [4, 1, 2, 3, 5, 7, 8, 9, 10]
    assert missed(api, cursor)[1] == []


def test_a_page_ends_after_a_number_of_characters(api, append, monkeypatch):
    cursor = api.get(MESSAGES).json()["cursor"]
    append("x" * 60, "y" * 60, "z" * 300)
    monkeypatch.setattr(catch_up, "MAX_PAGE_CHARS", 100)
    found, more = [], True
    while more:
        page, seqs = missed(api, cursor)
        found.append(seqs)
        cursor, more = page["cursor"], page["more"]
    assert found == [[3], [4], [5]]


@pytest.mark.regression
def test_a_message_above_the_characters_of_a_page_has_no_blocks_there(api, ann, talk, monkeypatch):
    content = [{"type": "text", "text": "see"}, {"type": "image", "base64": "A" * 200}]
    messages = [{"role": "user", "content": content}]
    services.append_messages(session_key="talk", by=Actor.user(ann), messages=messages)
    monkeypatch.setattr(catch_up, "MAX_PAGE_CHARS", 100)
    for query in ({}, {"after": 2}, {"before": 4}):
        message = api.get(MESSAGES, query).json()["messages"][-1]
        assert (message["seq"], message["text"]) == (3, "see")
        assert (message["content"], message["cut"]) == (None, True)
    whole = api.get(f"{MESSAGES}3/").json()
    assert (whole["content"], whole["cut"]) == (content, False)


def test_a_client_that_is_far_behind_gets_the_newest_rows(api, append):
    cursor = api.get(MESSAGES).json()["cursor"]
    append(*map(str, range(500)))
    page, seqs = missed(api, cursor, limit=100)
    assert (page["reset"], len(seqs), page["more"]) == (None, 100, True)
    append("x")
    page, seqs = missed(api, cursor, limit=100)
    assert (page["reset"], seqs, page["more"]) == ("behind", [*range(454, 504)], False)
    assert missed(api, page["cursor"])[1] == []


def after_clear(ann):
    clear(ann)
    add_rows(ann)


def after_restored_trim(ann):
    where = {"session_key": "talk", "by": Actor.user(ann), "reason": ""}
    add_rows(ann)
    entry = services.clear_session(**where)
    services.restore_session(entry_pk=entry.pk, by=Actor.user(ann), reason="")


def after_database_restore(ann):
    Message.stored.filter(seq=2).delete()
    Session.objects.update(last_seq=1)


def with_another_row(ann):
    Message.stored.filter(seq=2).update(role="tool")


def as_a_new_session(ann):
    where = {"session_key": "talk", "by": Actor.user(ann)}
    services.purge_session(**where, reason="")
    services.append_messages(**where, messages=make_messages("a", "b"), create=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (after_clear, "cleared"),
        (after_restored_trim, "restored"),
        (after_database_restore, "ahead"),
        (with_another_row, "diverged"),
        (as_a_new_session, "other"),
    ],
)
def test_a_reset_has_the_reason_that_a_socket_has(api, ann, talk, change, reason):
    cursor = api.get(MESSAGES).json()["cursor"]
    change(ann)
    page, seqs = missed(api, cursor)
    assert page["reset"] == reason
    assert seqs == [message["seq"] for message in api.get(MESSAGES).json()["messages"]]


@pytest.mark.parametrize("cursor", ["garbage", "", "\0", "1.2.3", "9" * 10_000, "x" * 10_000])
def test_an_invalid_cursor_is_a_reset(api, talk, cursor):
    page, seqs = missed(api, cursor)
    assert (page["reset"], seqs) == ("other", [1, 2])


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("cursor=1&before=2", "cursor"),
        ("cursor=1&after=2", "cursor"),
        ("after=1&before=2", "before"),
        ("cursor=1&limit=0", "limit"),
    ],
)
def test_a_cursor_is_not_combined_with_a_number(api, talk, query, field):
    assert problem(api.get(f"{MESSAGES}?{query}")) == (400, "bad_field", field)


def test_a_trim_moves_the_floor_without_a_reset(api, ann, append):
    cursor = api.get(MESSAGES).json()["cursor"]
    append("c", "d", "e", "f")
    services.trim_session(session_key="talk", by=Actor.user(ann), keep_last=2, reason="")
    page, seqs = missed(api, cursor)
    assert (page["reset"], page["first_seq"], seqs) == (None, 5, [5, 6])


def test_superseded_rows_are_sent_with_their_range(api, talk):
    send(api, wait=True)
    cursor = api.get(MESSAGES).json()["cursor"]
    send(api, "else?", client_id="c2", replaces=3, expect_seq=3, wait=True)
    page, seqs = missed(api, cursor)
    assert (page["superseded"], seqs) == ([[3, 4]], [5, 6])


def test_a_poll_without_news_is_one_statement_and_has_no_body(api, talk):
    address = f"{MESSAGES}?cursor={api.get(MESSAGES).json()['cursor']}"
    first = api.get(address)
    status, tables = tables_of(api, address, **{"if-none-match": first["ETag"]})
    assert (status, tables) == (304, [{"session", "turn"}])
    status, tables = tables_of(api, address)
    assert (status, tables) == (200, [{"session", "turn", "message"}])


def test_another_users_cursor_reveals_nothing(api, talk):
    foreign = make_session("talk", owner=make_user("bob"))
    cursor = str(Cursor(foreign.pk, foreign.epoch, 2, 0, 1))
    page, seqs = missed(api, cursor)
    assert (page["reset"], seqs, page["epoch"]) == ("other", [1, 2], talk.epoch)
    assert not Turn.objects.exists()
