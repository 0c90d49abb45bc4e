"""List sessions by state; rename, pin, archive, purge and restore them over REST."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from chatmemory import services
from chatmemory.access import rates
from chatmemory.models import AuditEntry, Session, Turn
from chatmemory.services import Actor, user_scope
from tests.api.calls import JSON, MESSAGES, SESSIONS, TALK, post, problem, send, talk_of
from tests.factories import make_session, make_user

pytestmark = pytest.mark.django_db

REMOVED = "/api/removed/"
PAST = datetime(2026, 1, 1, tzinfo=UTC)
OPERATOR = Actor("operator", "7", "olga")


def patch(api, **fields):
    return api.patch(TALK, fields, content_type=JSON)


def keys_of(answer):
    return [session["key"] for session in answer.json()["sessions"]]


def purge(api, key="talk"):
    answer = api.delete(f"{SESSIONS}{key}/")
    assert answer.status_code == 200
    return answer.json()["undo"]


def restore(api, undo):
    return post(api, f"{REMOVED}{undo}/restore/", {})


# Lists


@pytest.fixture
def various(ann):
    """Sessions that differ in one state each."""
    for key, columns in {
        "plain": {"title": "A kettle"},
        "archived": {"title": "Old KETTLES", "archived_at": PAST},
        "pinned": {"title": "100% _wool_", "pinned_at": PAST},
        "busy": {"running": "c1"},
    }.items():
        make_session(key, owner=ann, **columns)
    make_session("foreign", owner=make_user("bob"), title="A kettle", pinned_at=PAST)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["busy", "pinned", "archived", "plain"]),
        ({"archived": "true"}, ["archived"]),
        ({"archived": "false"}, ["busy", "pinned", "plain"]),
        ({"pinned": "true"}, ["pinned"]),
        ({"pinned": "false"}, ["busy", "archived", "plain"]),
        ({"running": "true"}, ["busy"]),
        ({"running": "false"}, ["pinned", "archived", "plain"]),
        ({"title": "kettle"}, ["archived", "plain"]),
        ({"title": "0% _W"}, ["pinned"]),
        ({"title": "%"}, ["pinned"]),
        ({"title": ""}, ["busy", "pinned", "archived", "plain"]),
        ({"title": "KETTLE", "archived": "false"}, ["plain"]),
        ({"pinned": "true", "running": "true"}, []),
    ],
)
def test_a_list_has_the_sessions_of_a_state_and_title(api, various, query, expected):
    assert keys_of(api.get(SESSIONS, query)) == expected
    pages = [api.get(SESSIONS, {**query, "limit": 1}).json()]
    while pages[-1]["next"]:
        pages.append(api.get(SESSIONS, {**query, "limit": 1, "cursor": pages[-1]["next"]}).json())
    assert [session["key"] for page in pages for session in page["sessions"]] == expected


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("archived=1", "bad_field", "archived"),
        ("pinned=True", "bad_field", "pinned"),
        ("running=", "bad_field", "running"),
        ("title=" + "x" * 201, "bad_field", "title"),
        ("title=a%00b", "bad_text", "title"),
        ("held=true", "unknown_field", "held"),
    ],
)
def test_a_bad_filter_is_rejected(api, query, code, field):
    assert problem(api.get(f"{SESSIONS}?{query}")) == (400, code, field)


def test_a_session_shows_its_state(api, ann, talk):
    by = Actor.user(ann)
    services.admit_turn(session_key="talk", by=by, client_id="c1", content="hi", owner="another")
    services.admit_turn(session_key="talk", by=by, client_id="c2", content="hi")
    ends = timezone.now() + timedelta(days=1)
    Session.objects.update(pinned_at=PAST, held_at=PAST, archived_at=PAST, expires_at=ends)
    shown = api.get(TALK).json()
    assert (shown["running"]["turn"], shown["waiting"]) == ("c1", 1)
    assert (shown["pinned"], shown["held"], shown["archived"]) == (True, True, True)
    assert shown["expires_at"] == ends.isoformat()


# Changes


def test_a_session_is_pinned_and_renamed_in_one_request(api, talk):
    shown = patch(api, title="A kettle", pinned=True).json()
    assert (shown["title"], shown["pinned"], shown["revision"]) == ("A kettle", True, 1)
    assert api.get(TALK).json() == shown
    assert patch(api, pinned=True).json()["revision"] == 1
    assert patch(api, pinned=False).json() == {**shown, "pinned": False, "revision": 2}


def test_an_outdated_revision_is_a_conflict_unless_nothing_would_change(api, talk):
    assert patch(api, title="A kettle", expect_revision=0).status_code == 200
    stale = patch(api, title="A pot", pinned=True, expect_revision=0)
    assert problem(stale) == (409, "conflict", None)
    shown = api.get(TALK).json()
    assert (shown["title"], shown["pinned"], shown["revision"]) == ("A kettle", False, 1)
    # A retry of the first request, whose answer was lost.
    assert patch(api, title="A kettle", expect_revision=0).json() == shown


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"title": None, "pinned": None}, "bad_field", "title"),
        ({"expect_revision": 1}, "bad_field", "title"),
        ({"pinned": 1}, "bad_field", "pinned"),
        ({"pinned": "true"}, "bad_field", "pinned"),
        ({"title": 5}, "bad_field", "title"),
        ({"title": "a\0b"}, "bad_text", "title"),
        ({"pinned": True, "expect_revision": "1"}, "bad_field", "expect_revision"),
        ({"pinned": True, "expect_revision": -1}, "bad_field", "expect_revision"),
        ({"archived": True}, "unknown_field", "archived"),
    ],
)
def test_a_bad_change_is_rejected(api, talk, body, code, field):
    assert problem(patch(api, **body)) == (400, code, field)
    assert Session.objects.get().revision == 0


def test_pins_are_limited_for_each_user(api, ann, talk, monkeypatch):
    monkeypatch.setattr(rates, "MAX_PINNED", 2)
    for number in range(2):
        make_session(f"s{number}", owner=ann, pinned_at=PAST)
    make_session("foreign", owner=make_user("bob"), pinned_at=PAST)
    answer = patch(api, title="new", pinned=True)
    assert problem(answer) == (400, "too_many", "pinned")
    assert answer.json()["limit"] == 2
    assert Session.objects.get(key="talk").revision == 0
    purge(api, "s0")
    assert patch(api, pinned=True).status_code == 200


def test_a_session_on_hold_can_be_pinned_but_not_renamed(api, talk):
    Session.objects.update(held_at=PAST)
    assert problem(patch(api, title="new", pinned=True)) == (409, "held", None)
    assert patch(api, pinned=True).json()["pinned"] is True


def test_an_archived_session_keeps_its_run_and_loses_its_queue(api, ann, talk):
    by = Actor.user(ann)
    services.admit_turn(session_key="talk", by=by, client_id="c1", content="hi", owner="another")
    services.admit_turn(session_key="talk", by=by, client_id="c2", content="hi")
    answers = [post(api, f"{TALK}archive/", {}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    shown = answers[0].json()
    assert (shown["archived"], shown["waiting"], shown["running"]["turn"]) == (True, 0, "c1")
    assert Turn.objects.get(client_id="c2").status == "cancelled"
    assert problem(send(api, client_id="c3"))[:2] == (409, "archived")
    entry = AuditEntry.objects.get(action="archive")
    assert (entry.actor_id, entry.reason) == (str(ann.pk), "requested by the owner")


def test_an_unarchived_session_accepts_messages(api, talk):
    Session.objects.update(archived_at=PAST)
    for _ in range(2):
        answer = post(api, f"{TALK}unarchive/", {})
        assert (answer.status_code, answer.json()["archived"]) == (200, False)
    assert send(api).status_code == 202


def test_a_session_that_an_operator_archived_cannot_be_opened(api, ann, talk):
    where = {"session_key": "talk", "by": OPERATOR, "scope": user_scope(ann)}
    services.archive_session(**where, reason="abuse")
    assert problem(post(api, f"{TALK}unarchive/", {})) == (403, "forbidden", None)
    assert problem(send(api))[:2] == (409, "archived")


@pytest.mark.parametrize("verb", ["archive", "unarchive"])
@pytest.mark.parametrize(
    ("body", "code"), [({"reason": "x"}, "unknown_field"), ([], "bad_shape"), (b"{", "bad_json")]
)
def test_an_archive_has_an_empty_body(api, talk, verb, body, code):
    assert problem(post(api, f"{TALK}{verb}/", body))[:2] == (400, code)
    assert not AuditEntry.objects.exists()


# Removal


def test_a_purge_can_be_undone(api, ann, talk):
    answer = api.delete(TALK)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor_id, entry.reason) == (
        "purge",
        str(ann.pk),
        "requested by the owner",
    )
    until = entry.created_at + timedelta(days=30)
    assert answer.json() == {"undo": entry.pk, "until": until.isoformat()}
    assert problem(api.get(TALK))[:2] == problem(api.delete(TALK))[:2] == (404, "not_found")
    [removed] = api.get(REMOVED).json()["removed"]
    assert removed == {
        "undo": entry.pk,
        "key": "talk",
        "title": "",
        "messages": 2,
        "removed_at": entry.created_at.isoformat(),
        "until": until.isoformat(),
    }
    restored = restore(api, entry.pk)
    assert (restored.status_code, restored.json()) == (200, api.get(TALK).json())
    assert [row["text"] for row in api.get(MESSAGES).json()["messages"]] == ["hi", "hello"]
    assert api.get(REMOVED).json() == {"removed": [], "next": None}
    assert problem(restore(api, entry.pk)) == (409, "conflict", None)


def test_a_purge_ends_the_running_turn(api, ann, talk):
    where = {"session_key": "talk", "by": Actor.user(ann)}
    services.admit_turn(**where, client_id="c1", content="hi", owner="another")
    purge(api)
    assert Turn.objects.get().status == "interrupted"


def test_a_session_on_hold_is_not_purged(api, talk):
    Session.objects.update(held_at=PAST)
    assert problem(api.delete(TALK)) == (409, "held", None)
    assert api.get(TALK).status_code == 200


def test_a_session_is_not_restored_over_another_one(api, ann, talk):
    undo = purge(api)
    talk_of(ann, "new")
    assert problem(restore(api, undo)) == (409, "conflict", None)
    assert [row["text"] for row in api.get(MESSAGES).json()["messages"]] == ["new"]
    newer = purge(api)
    assert [removed["undo"] for removed in api.get(REMOVED).json()["removed"]] == [newer, undo]
    assert restore(api, undo).status_code == 200
    assert [row["text"] for row in api.get(MESSAGES).json()["messages"]] == ["hi", "hello"]


def test_removed_sessions_are_listed_in_pages(api, ann):
    undos = []
    for number in range(5):
        make_session(f"s{number}", owner=ann)
        undos.insert(0, purge(api, f"s{number}"))
    pages = [api.get(REMOVED, {"limit": 2}).json()]
    while pages[-1]["next"]:
        pages.append(api.get(REMOVED, {"limit": 2, "cursor": pages[-1]["next"]}).json())
    assert [len(page["removed"]) for page in pages] == [2, 2, 1]
    assert [removed["undo"] for page in pages for removed in page["removed"]] == undos


def old_purge(api, ann):
    undo = purge(api)
    AuditEntry.objects.update(created_at=PAST)
    return undo


def operators_purge(api, ann):
    by = Actor("operator", str(ann.pk), "olga")  # not the owner, in spite of the id
    where = {"session_key": "talk", "by": by, "scope": user_scope(ann)}
    return services.purge_session(**where, reason="").pk


def erased(api, ann):
    undo = purge(api)
    services.erase_person(by=OPERATOR, scope=user_scope(ann), reason="")
    return undo


def partly_deleted(api, ann):
    undo = purge(api)
    Session.objects.update(stored_from=2)
    return undo


def purged_twice(api, ann):
    undo = purge(api)
    restore(api, undo)
    operators_purge(api, ann)
    return undo


@pytest.mark.parametrize(
    ("act", "status"),
    [
        (old_purge, 200),
        (operators_purge, 404),
        (erased, 404),
        (partly_deleted, 409),
        (purged_twice, 403),
    ],
)
def test_a_session_that_its_owner_cannot_restore_for_long_is_not_listed(
    api, ann, talk, act, status
):
    undo = act(api, ann)
    assert api.get(REMOVED).json()["removed"] == []
    assert restore(api, undo).status_code == status


def test_a_restore_that_undoes_an_operators_removal_is_forbidden(api, ann):
    talk_of(ann, *"abcd")
    first = services.trim_session(session_key="talk", by=Actor.user(ann), keep_last=2, reason="")
    services.clear_session(session_key="talk", by=OPERATOR, scope=user_scope(ann), reason="")
    assert problem(restore(api, first.pk)) == (403, "forbidden", None)
    assert api.get(MESSAGES).json()["messages"] == []


@pytest.mark.parametrize("undo", ["0", "1" + "0" * 30, str(2**53), str(2**53 - 1)])
def test_an_unknown_removal_is_not_found(api, undo):
    assert problem(restore(api, undo))[:2] == (404, "not_found")


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "cursor=-1", "cursor=x", "cursor="])
def test_a_bad_page_of_removed_sessions_is_rejected(api, query):
    assert problem(api.get(f"{REMOVED}?{query}"))[:2] == (400, "bad_field")


def test_a_restore_has_an_empty_body(api, talk):
    undo = purge(api)
    answer = post(api, f"{REMOVED}{undo}/restore/", {"key": "other"})
    assert problem(answer) == (400, "unknown_field", "key")


def test_a_restored_session_keeps_its_pin(api, talk):
    patch(api, pinned=True)
    assert restore(api, purge(api)).json()["pinned"] is True
