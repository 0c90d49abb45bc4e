"""The search over REST: who may search, what is refused, and what the answer has."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from django.core.cache import cache
from django.test import Client

from chatmemory import services
from chatmemory.access.visitors import COOKIE
from chatmemory.models import AuditEntry, Message, Reading
from chatmemory.search.indexing import index_session
from chatmemory.services import Actor
from tests.api.calls import post, problem, talk_of
from tests.api.test_visitors import CSRF, Browser
from tests.factories import make_messages, make_user, make_visitor
from tests.impersonators_for_tests import IMPERSONATE

pytestmark = pytest.mark.django_db

SEARCH = "/api/search/"
TEXTS = ("Where is my green kettle?", "The kettle left our store.", "Thank you!")
WORD = "sesquipedalian"


@pytest.fixture(autouse=True)
def _no_counts():
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def ann():
    return make_user("ann")


@pytest.fixture
def api(ann):
    client = Client()
    client.force_login(ann)
    return client


@pytest.fixture
def talk(ann):
    return talk_of(ann, *TEXTS, title="A kettle")


def found(client, query="kettle", **fields):
    answer = post(client, SEARCH, {"query": query, **fields})
    assert answer.status_code == 200, answer.content
    return [hit["seq"] for hit in answer.json()["hits"]]


def test_a_hit_has_what_a_list_of_hits_shows(api, talk):
    answer = post(api, SEARCH, {"query": "green kettle", "limit": 1})
    page = answer.json()
    [hit] = page["hits"]
    assert hit.pop("score") > 0
    assert hit == {
        "session": "talk",
        "title": "A kettle",
        "seq": 1,
        "role": "user",
        "at": Message.objects.get(seq=1).created_at.isoformat(),
        "snippet": TEXTS[0],
        "ranges": [[12, 17], [18, 24]],
    }
    assert page["partial"] is False
    assert page["cursor"] is not None
    assert answer["Cache-Control"] == "no-store"


def test_without_a_title_a_hit_has_the_first_words_of_the_chat(api, ann):
    talk_of(ann, *TEXTS)
    [hit] = post(api, SEARCH, {"query": "store"}).json()["hits"]
    assert (hit["title"], hit["seq"]) == (TEXTS[0], 2)


@pytest.mark.slow
@pytest.mark.parametrize("has_blocks", [False, True])
def test_each_field_selects_hits(api, ann, talk, has_blocks):
    other = talk_of(ann, "Another kettle, a red one", key="other")
    if has_blocks:
        for session in (talk, other):
            index_session(session.pk)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert sorted(found(api)) == [1, 1, 2]
    assert found(api, session="other") == [1]
    assert found(api, session="talk", role="assistant") == [2]
    assert found(api, after=tomorrow) == []
    assert sorted(found(api, before=tomorrow)) == [1, 1, 2]
    assert found(api, session="talk", order="newest") == [2, 1]
    assert found(api, "gre") == []
    assert found(api, "gre", mode="prefix") == [1]
    assert found(api, "kettle left", mode="phrase") == [2]


def test_a_cursor_continues(api, talk):
    first = post(api, SEARCH, {"query": "kettle", "limit": 1, "order": "newest"}).json()
    rest = post(
        api, SEARCH, {"query": "kettle", "order": "newest", "cursor": first["cursor"]}
    ).json()
    assert [hit["seq"] for hit in (*first["hits"], *rest["hits"])] == [2, 1]
    assert (rest["partial"], rest["cursor"]) == (False, None)


BAD = {
    "no query": ({"query": None}, 400, "bad_field", "query"),
    "no text": ({"query": 7}, 400, "bad_field", "query"),
    "empty": ({"query": ""}, 400, "bad_field", "query"),
    "no words": ({"query": "?!"}, 400, "empty", "query"),
    "long": ({"query": "a" * 501}, 400, "bad_field", "query"),
    "NUL": ({"query": "a\0"}, 400, "bad_text", "query"),
    "key": ({"session": "a/b"}, 400, "bad_field", "session"),
    "role": ({"role": "system"}, 400, "bad_field", "role"),
    "order": ({"order": "oldest"}, 400, "bad_field", "order"),
    "mode": ({"mode": "regex"}, 400, "bad_field", "mode"),
    "no limit": ({"limit": 0}, 400, "bad_field", "limit"),
    "limit": ({"limit": 51}, 400, "bad_field", "limit"),
    "text limit": ({"limit": "5"}, 400, "bad_field", "limit"),
    "cursor": ({"cursor": "x"}, 400, "bad_field", "cursor"),
    "no time": ({"before": "yesterday"}, 400, "bad_field", "before"),
    "no offset": ({"after": "2026-05-04T09:30:00"}, 400, "bad_field", "after"),
    "day": ({"after": "2026-05-04"}, 400, "bad_field", "after"),
    "early": ({"after": "0001-01-01T00:00:00+14:00"}, 400, "bad_field", "after"),
    "late": ({"before": "9999-12-31T23:59:59-14:00"}, 400, "bad_field", "before"),
    "seconds": ({"before": 1_700_000_000}, 400, "bad_field", "before"),
    "scope": ({"scope": "server"}, 400, "unknown_field", "scope"),
    "superseded": ({"superseded": True}, 400, "unknown_field", "superseded"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_fields_are_refused(api, name):
    fields, status, code, field = BAD[name]
    given = {"query": "kettle", **fields}
    assert problem(post(api, SEARCH, given)) == (status, code, field)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59+00:00"])
def test_each_time_of_the_calendar_is_accepted(api, talk, time):
    assert sorted(found(api, after="0001-01-01T00:00:00Z", before=time)) in ([], [1, 2])


def test_only_a_post_of_json_searches(api, talk):
    assert problem(api.get(f"{SEARCH}?query=kettle"))[:2] == (405, "method_not_allowed")
    assert problem(api.post(SEARCH, {"query": "kettle"}))[:2] == (415, "unsupported_media_type")
    assert problem(post(api, SEARCH[:-1], {"query": "kettle"}))[:2] == (404, "not_found")
    answer = post(api, SEARCH, {"query": "kettle"}, if_match='"x"')
    assert problem(answer)[:2] == (412, "precondition_failed")


def test_who_is_not_signed_in_searches_nothing(talk):
    assert problem(post(Client(), SEARCH, {"query": "kettle"}))[:2] == (401, "unauthenticated")


def test_a_search_needs_the_csrf_token(ann, talk):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(ann)
    assert problem(post(browser, SEARCH, {"query": "kettle"}))[0] == 403
    browser.cookies["csrftoken"] = CSRF
    assert post(browser, SEARCH, {"query": "kettle"}, x_csrftoken=CSRF).status_code == 200


def test_others_find_nothing_and_no_session(talk):
    bob = Client()
    bob.force_login(make_user("bob"))
    assert found(bob) == []
    assert problem(post(bob, SEARCH, {"query": "kettle", "session": "talk"})) == (
        404,
        "not_found",
        None,
    )


def test_a_visitor_finds_only_the_own_messages(talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True}
    visitor, other = make_visitor(), make_visitor()
    services.append_messages(
        session_key="own", by=visitor.actor, messages=make_messages("A kettle"), create=True
    )
    assert found(Browser(visitor.token)) == [1]
    assert found(Browser(other.token)) == []
    assert problem(post(Browser(visitor.token, csrf=None), SEARCH, {"query": "kettle"}))[0] == 403
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": False}
    assert problem(post(Browser(visitor.token), SEARCH, {"query": "kettle"}))[0] == 401


def test_the_page_of_an_embed_may_read_the_answer(settings):
    site = "https://shop.example"
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "ALLOW_ANONYMOUS": True,
        "EMBEDS": {"shop": [site]},
    }
    visitor = make_visitor(embed="shop")
    page = Browser(csrf=None)
    page.cookies.clear()
    given = {"authorization": f"Visitor {visitor.token}", "origin": site, "referer": None}
    answer = post(page, SEARCH, {"query": "kettle"}, **given)
    assert (answer.status_code, answer["Access-Control-Allow-Origin"]) == (200, site)
    assert COOKIE not in answer.cookies


def reach_nobody(_):
    return False


def test_who_may_not_chat_or_is_refused_by_the_gate_searches_nothing(api, talk, settings):
    usual = settings.CHATMEMORY
    settings.CHATMEMORY = {**usual, "REACH": f"{__name__}.reach_nobody"}
    assert problem(post(api, SEARCH, {"query": "kettle"}))[:2] == (403, "forbidden")
    settings.CHATMEMORY = {**usual, "GATE": "tests.gates_for_tests.second_factor"}
    assert problem(post(api, SEARCH, {"query": "kettle"}))[:2] == (403, "refused")


def test_searches_are_limited_for_each_person(api, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SEARCHES_PER_MINUTE": 2}
    answers = [post(api, SEARCH, {"query": "kettle"}) for _ in range(3)]
    # A minute of the clock may begin between them.
    answers += [post(api, SEARCH, {"query": "kettle"}) for _ in range(2)]
    limited = [each for each in answers if each.status_code != 200]
    assert limited
    assert problem(limited[0])[:2] == (429, "rate_limited")
    assert 1 <= int(limited[0]["Retry-After"]) <= 60


def test_a_search_counts_as_a_read_and_not_as_a_write(api, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WRITES_PER_MINUTE": 0}
    assert found(api)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "READS_PER_MINUTE": 0}
    assert problem(post(api, SEARCH, {"query": "kettle"}))[:2] == (429, "rate_limited")


def test_staff_in_the_name_of_a_person_leave_an_entry_for_each_found_chat(ann, talk, settings):
    other = talk_of(ann, "A kettle too", "No pan", "My kettle", key="other")
    talk_of(ann, "A pan", key="third")
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "IMPERSONATOR": "tests.impersonators_for_tests.of_impersonate",
    }
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "tests.impersonators_for_tests.ImpersonateMiddleware",
    ]
    browser = Client()
    browser.force_login(make_user("olga", is_staff=True))
    session = browser.session
    session[IMPERSONATE] = ann.pk
    session.save()
    assert len(found(browser)) == 4
    entries = AuditEntry.objects.order_by("session_pk")
    shown = [(each.action, each.actor_label, each.from_seq, each.to_seq) for each in entries]
    assert shown == [("read", "olga", 1, 2), ("read", "olga", 1, 1)]
    assert Reading.objects.count() == 2
    # Not the message between them, which the answer does not have
    assert Reading.objects.get(session_pk=other.pk).ranges == [[1, 1], [3, 3]]


def test_a_person_leaves_no_entry(api, talk):
    assert found(api)
    assert not AuditEntry.objects.filter(action="read").exists()


def test_no_log_and_no_answer_has_the_query(api, talk, caplog):
    caplog.set_level(logging.DEBUG)
    bodies = [{}, {"cursor": "x"}, {"session": "none"}, {"mode": "prefix"}, {"limit": 99}, {"x": 1}]
    answers = [post(api, SEARCH, {"query": f"{WORD} {WORD}", **each}) for each in bodies]
    assert {answer.status_code for answer in answers} == {200, 400, 404}
    assert WORD not in "".join(answer.content.decode() for answer in answers)
    own = [each for each in caplog.records if each.name != "django.db.backends"]
    assert WORD not in "".join(record.getMessage() for record in own)
    assert WORD not in caplog.text  # nor in an SQL statement


def test_a_redacted_message_is_not_found(api, ann, talk):
    services.redact_message(session_key="talk", by=Actor.user(ann), seq=1, reason="")
    assert found(api) == [2]
