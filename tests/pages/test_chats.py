"""The list of chats and what a person can do with a chat in it, without a browser."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from html import unescape
from types import ModuleType

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F
from django.template.loader import render_to_string
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import include, path
from django.utils import timezone
from django.views.generic import RedirectView

from chatmemory import services
from chatmemory.access.rates import MAX_PINNED
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.pages import listing
from chatmemory.pages.listing import CHATS_PER_PAGE, MAX_CHATS
from chatmemory.services import Actor
from tests.factories import BY, make_messages, make_session, make_user

pytestmark = pytest.mark.django_db

SCRIPT = {"accept": "application/json"}
NOW = datetime(2026, 3, 18, 12, tzinfo=UTC)
CALL = {"id": "c1", "name": "weather", "args": {}}
VERBS = ("rename", "pin", "unpin", "archive", "unarchive", "delete")


@pytest.fixture
def ann():
    return make_user("ann")


@pytest.fixture
def web(ann):
    """Return a client with Ann signed in."""
    client = Client()
    client.force_login(ann)
    return client


@pytest.fixture
def at_noon(monkeypatch):
    """Let it be noon of March 18, 2026 (UTC)."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    monkeypatch.setattr(listing, "datetime", Clock)


def talk(user, *texts, key="talk", ago=None, **columns):
    """Store these messages in a session of the user, the last one this time ago."""
    session = make_session(key, owner=user)
    messages = make_messages(*(texts or ("hi", "hello")))
    services.append_messages(session_key=key, messages=messages, by=Actor.user(user))
    if ago is not None:
        columns["last_message_at"] = NOW - ago
    if columns:
        Session.objects.filter(pk=session.pk).update(**columns)
    session.refresh_from_db()
    return session


def titles(response):
    assert response.status_code == 200
    found = re.findall(r'<span class="cm-title" dir="auto">(.*?)</span>', response.content.decode())
    return [unescape(title) for title in found]


def groups(response):
    """Return the titles of each group, by its heading."""
    parts = re.split(r"<h2>(.*?)</h2>", response.content.decode())[1:]
    return {
        name: re.findall(r'<span class="cm-title" dir="auto">(.*?)</span>', part)
        for name, part in zip(parts[::2], parts[1::2], strict=True)
    }


def older(response):
    """Return the address of the next page, or None."""
    found = re.search(r'<a class="cm-more" href="([^"]+)"', response.content.decode())
    return found and unescape(found[1])


def rename(web, title, **more):
    return web.post("/chat/talk/rename/", {"title": title}, headers=SCRIPT, **more)


# The list


def test_the_list_has_own_chats_last_active_first_by_title_or_first_words(web, ann):
    talk(ann, "What is <this>?", key="a")
    talk(ann, "hi", key="b", title="A title")
    talk(make_user("bob"), "a secret", key="c")
    make_session("empty", owner=ann)
    assert titles(web.get("/chat/~all/")) == ["A title", "What is <this>?"]


def test_a_chat_whose_key_is_invalid_in_urls_is_not_listed(web, ann):
    for key in ("ticket/1", "a key", "a\n"):
        talk(ann, key=key)
    talk(ann, key="a", title="Shown")
    assert titles(web.get("/chat/~all/")) == ["Shown"]


def test_chats_are_grouped_by_date(web, ann, at_noon):
    hour, day = timedelta(hours=1), timedelta(days=1)
    ages = {
        "future": -9 * day,
        "morning": 11 * hour,
        "evening": 13 * hour,
        "week": 2 * day,
        "week end": 7 * day,
        "month": 8 * day,
        "month end": 30 * day,
        "February": 31 * day,
        "last year": 365 * day,
    }
    for title, ago in ages.items():
        talk(ann, key=title.replace(" ", "."), title=title, ago=ago)
    talk(ann, key="pinned", title="pinned", ago=400 * day, pinned_at=NOW)
    make_session("none", owner=ann, title="none")
    assert groups(web.get("/chat/~all/")) == {
        "Pinned": ["pinned"],
        "Today": ["future", "morning"],
        "Yesterday": ["evening"],
        "Previous 7 days": ["week", "week end"],
        "Previous 30 days": ["month", "month end"],
        "February 2026": ["February"],
        "March 2025": ["last year"],
        "Without messages": ["none"],
    }


def test_the_days_are_those_of_the_current_time_zone(web, ann, at_noon, settings):
    talk(ann, title="late", ago=timedelta(hours=11))  # 1:00 UTC
    assert groups(web.get("/chat/~all/")) == {"Today": ["late"]}
    settings.TIME_ZONE = "America/New_York"
    timezone.get_default_timezone.cache_clear()
    try:
        assert groups(web.get("/chat/~all/")) == {"Yesterday": ["late"]}
    finally:
        timezone.get_default_timezone.cache_clear()


@pytest.mark.parametrize("year", [1, 9999])
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_an_imported_time_at_the_end_of_the_calendar_hides_no_chat(web, ann, year, zone):
    talk(ann, title="old", key="old")
    talk(ann, title="new", key="new")
    at = datetime(9999, 12, 31, 23, 59, tzinfo=UTC) if year > 1 else datetime(1, 1, 1, tzinfo=UTC)
    Session.objects.filter(key="old").update(last_message_at=at)
    with timezone.override(zone):
        assert set(titles(web.get("/chat/~all/"))) == {"new", "old"}


def test_states_are_marked(web, ann):
    talk(ann)
    page = web.get("/chat/~all/").content.decode()
    assert "Reply in progress" not in page
    assert ">Pinned<" not in page
    where = {"session_key": "talk", "by": Actor.user(ann)}
    services.update_session(**where, pinned=True)
    services.admit_turn(**where, client_id="t1", content="and?", owner="me")
    page = web.get("/chat/~all/").content.decode()
    assert "Reply in progress" in page
    assert page.count(">Pinned<") == 2  # the heading and the mark
    assert 'data-last="3"' in page


def test_archived_chats_have_a_list_of_their_own(web, ann):
    talk(ann, title="open", key="open")
    talk(ann, title="closed", key="closed", archived_at=NOW, pinned_at=NOW)
    assert titles(web.get("/chat/~all/")) == ["open"]
    assert titles(web.get("/chat/~archived/")) == ["closed"]
    web.post("/chat/closed/unarchive/")
    assert titles(web.get("/chat/~all/")) == ["closed", "open"]
    assert "There are no archived chats." in web.get("/chat/~archived/").content.decode()


def test_the_list_has_pages_in_which_no_chat_repeats(web, ann):
    for number in range(CHATS_PER_PAGE + 2):
        talk(ann, key=f"s{number}", title=f"{number}")
    talk(ann, key="pinned", title="pinned", pinned_at=NOW)
    first = web.get("/chat/~all/")
    assert titles(first) == ["pinned", *map(str, range(CHATS_PER_PAGE + 1, 1, -1))]
    talk(ann, key="later", title="later")
    second = web.get(older(first))
    assert titles(second) == ["1", "0"]
    assert older(second) is None
    assert web.get("/chat/~all/?cursor=x").status_code == 400


def test_a_part_has_as_many_chats_as_are_shown_up_to_a_limit(web, ann):
    Session.objects.bulk_create(
        Session(scope=services.user_scope(ann), key=f"s{number}", owner=ann, title="a")
        for number in range(MAX_CHATS + 1)
    )
    for shown, count in ((1, CHATS_PER_PAGE), (50, 50), (10**9, MAX_CHATS)):
        part = web.get(f"/chat/~all/?part&shown={shown}")
        assert len(titles(part)) == count
        assert "<html" not in part.content.decode()


def test_an_unchanged_part_is_not_sent_again(web, ann):
    talk(ann)
    tag = web.get("/chat/~all/?part")["ETag"]
    again = web.get("/chat/~all/?part", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert "no-store" in again["Cache-Control"]
    services.update_session(session_key="talk", by=Actor.user(ann), title="new")
    assert web.get("/chat/~all/?part", headers={"if-none-match": tag}).status_code == 200


def test_numbers_for_scripts_and_addresses_have_no_separators(web, settings):
    settings.USE_THOUSAND_SEPARATOR = True
    bob = User.objects.create(pk=12_345, username="bob")
    web.force_login(bob)
    call = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    messages = [*make_messages("hi"), call, {"role": "tool", "content": "", "tool_call_id": "c1"}]
    talk(bob)
    services.append_messages(session_key="talk", messages=messages, by=Actor.user(bob))
    moved = 45_678
    Session.objects.update(last_seq=F("last_seq") + moved, first_seq=F("first_seq") + moved)
    Message.stored.update(seq=F("seq") + moved, revision=34_567)
    pages = web.get("/chat/~all/").text + web.get("/chat/talk/").text
    pages += render_to_string("chatmemory/removed.html", {"older": 23_456})
    for attribute in (
        ' data-person="12345"',
        ' person="12345"',
        ' data-last="45683"',
        ' data-seq="45679"',
        ' data-revision="34567"',
        ' data-steps="34567"',
        ' data-result="45683.34567"',
        ' href="?before=23456"',
    ):
        assert attribute in pages
    assert not re.search(r"\d,\d{3}", pages)


# The search


def test_titles_and_first_words_are_searched(web, ann, at_noon):
    talk(ann, "Where is my INVOICE?", key="a")
    talk(ann, "hello", "an invoice", key="b")
    talk(ann, "invoice", key="c", title="A title")
    talk(ann, "hi", key="d", title="The invoice", pinned_at=NOW)
    talk(ann, "hi", key="e", title="Old invoice", archived_at=NOW)
    talk(make_user("bob"), "invoice", key="f")
    found = web.get("/chat/~all/?title=%20invoice%20")
    assert groups(found) == {"Pinned": ["The invoice"], "Today": ["Where is my INVOICE?"]}
    assert titles(web.get("/chat/~archived/?title=invoice")) == ["Old invoice"]
    assert 'value="invoice"' in found.content.decode()


def test_only_the_first_words_of_the_newest_chats_are_searched(web, ann, monkeypatch):
    monkeypatch.setattr(listing, "SEARCHED_CHATS", 1)
    talk(ann, "invoice one", key="a")
    talk(ann, "invoice two", key="b")
    talk(ann, "hi", key="c", title="An invoice")
    assert titles(web.get("/chat/~all/?title=invoice")) == ["An invoice", "invoice two"]


@pytest.mark.slow
def test_the_pages_of_a_search_are_of_the_same_search(web, ann):
    for number in range(CHATS_PER_PAGE + 1):
        talk(ann, key=f"s{number}", title=f"a & b {number}")
    found = web.get("/chat/~all/?title=a+%26")
    assert titles(web.get(older(found))) == ["a & b 0"]


def test_an_address_with_a_search_or_a_page_of_the_list_leads_to_the_list(web):
    for query in ("title=a%26b", "cursor=x&title="):
        answer = web.get(f"/chat/?{query}")
        assert (answer.status_code, answer["Location"]) == (302, f"/chat/~all/?{query}")
    assert web.get("/chat/?undo=5")["Location"].endswith("/?undo=5")


@pytest.mark.parametrize("text", ["%", "_", "\\", "<b>", "x" * 300, "'"])
def test_a_search_without_a_result_states_it(web, ann, text):
    talk(ann, "hi")
    page = web.get("/chat/~all/", {"title": text}).content.decode()
    assert "in its title." in page
    assert "<b>" not in page
    assert web.get("/chat/~all/", {"title": "\0hi"}).status_code == 200


@pytest.mark.parametrize("path", ["/chat/~all/", "/chat/~archived/"])
def test_a_search_for_what_no_database_stores_finds_nothing(web, ann, path):
    talk(ann, "hi")
    # The charset of a GET request is that of its query string.
    charset = "text/plain; charset=unicode_escape"
    found = web.get(f"{path}?title=%5Cud800", CONTENT_TYPE=charset)
    assert titles(found) == []


# Changes


def test_a_chat_is_renamed_and_an_empty_title_shows_the_first_words(web, ann):
    talk(ann, "First words of it")
    assert rename(web, " A new title ").json() == {"title": "A new title"}
    assert titles(web.get("/chat/~all/")) == ["A new title"]
    assert rename(web, "").json() == {"title": "First words of it"}
    assert titles(web.get("/chat/~all/")) == ["First words of it"]
    assert rename(web, "\u200b \u200b").json() == {"title": "First words of it"}  # invisible
    assert rename(web, "x" * 200).status_code == 200


@pytest.mark.parametrize("title", ["x" * 201, "\0"])
def test_an_invalid_title_is_refused_in_words(web, ann, title):
    talk(ann, title="kept")
    answer = rename(web, title)
    assert answer.status_code == 400
    assert answer.json()["message"] == "A title has up to 200 characters."
    assert titles(web.get("/chat/~all/")) == ["kept"]


def test_chats_are_pinned_and_unpinned(web, ann, at_noon):
    talk(ann)
    assert web.post("/chat/talk/pin/", headers=SCRIPT).json() == {}
    assert list(groups(web.get("/chat/~all/"))) == ["Pinned"]
    assert web.post("/chat/talk/unpin/").headers["Location"] == "/chat/~all/"
    assert list(groups(web.get("/chat/~all/"))) == ["Today"]


@pytest.mark.regression
@pytest.mark.parametrize("pinned_at", [None, NOW], ids=["unpinned", "pinned"])
def test_a_chat_is_listed_once_while_its_pin_changes(web, ann, pinned_at):
    talk(ann, key="a", title="bread", pinned_at=None if pinned_at else NOW)
    talk(ann, key="b", title="pears", pinned_at=NOW)

    def change_after_pins(execute, sql, *more):
        found = execute(sql, *more)
        if "pinned_at" in sql and "IS NOT NULL" in sql:
            Session.objects.filter(key="a").update(pinned_at=pinned_at)
        return found

    with connection.execute_wrapper(change_after_pins):
        page = web.get("/chat/~all/")
    assert Session.objects.get(key="a").pinned_at == pinned_at
    assert sorted(titles(page)) == ["bread", "pears"]


def test_too_many_pins_are_refused_in_words(web, ann):
    Session.objects.bulk_create(
        Session(scope=services.user_scope(ann), key=f"s{number}", pinned_at=NOW, title="a")
        for number in range(MAX_PINNED)
    )
    talk(ann)
    answer = web.post("/chat/talk/pin/", headers=SCRIPT)
    assert answer.status_code == 400
    assert answer.json() == {
        "code": "too_many",
        "message": "You can pin up to 100 chats. Unpin one first.",
    }


def test_an_archive_by_an_operator_cannot_be_undone(web, ann):
    talk(ann)
    scope = services.user_scope(ann)
    operator = Actor.operator(make_user("olga"))
    services.archive_session(session_key="talk", by=operator, scope=scope, reason="")
    answer = web.post("/chat/talk/unarchive/", headers=SCRIPT)
    assert answer.status_code == 403
    assert answer.json()["message"] == "You do not have permission to do this."


def test_a_deleted_chat_is_restored(web, ann):
    talk(ann, "hi", "hello", title="kept")
    answer = web.post("/chat/talk/delete/", headers=SCRIPT).json()
    entry = AuditEntry.objects.get(action="purge")
    assert entry.reason == "requested by the owner"
    assert answer == {
        "undo": f"/chat/~deleted/{entry.pk}/restore/",
        "next": f"/chat/~new/?undo={entry.pk}",
    }
    assert web.get("/chat/talk/").status_code == 404
    assert web.post(answer["undo"], headers=SCRIPT).json() == {"page": "/chat/talk/"}
    assert titles(web.get("/chat/~all/")) == ["kept"]
    again = web.post(answer["undo"], headers=SCRIPT)
    assert again.status_code == 409
    assert "was restored before" in again.json()["message"]


def test_a_restored_chat_that_was_deleted_again_is_not_found(web, ann, monkeypatch):
    talk(ann)
    undo = web.post("/chat/talk/delete/", headers=SCRIPT).json()["undo"]
    restore = services.restore_session

    def delete_again(**given):
        entry = restore(**given)
        services.purge_session(session_key="talk", by=Actor.user(ann), reason="")
        return entry

    monkeypatch.setattr(services, "restore_session", delete_again)
    assert web.post(undo, headers=SCRIPT).status_code == 404


@pytest.mark.slow
def test_the_next_page_offers_to_undo_a_deletion_once(web, ann):
    talk(ann)
    address = web.post("/chat/talk/delete/")["Location"]
    undo = re.search(r"\d+", address)[0]
    new = web.get(f"/chat/~new/?undo={undo}")["Location"]
    assert new.endswith(f"/?undo={undo}")
    for page in (address, new):
        html = web.get(page).content.decode()
        assert f'formaction="/chat/~deleted/{undo}/restore/"' in html
        assert 'class="cm-banner cm-notice" data' in html
    assert web.post(f"/chat/~deleted/{undo}/restore/")["Location"] == "/chat/talk/"
    for page in (address, new, "/chat/~all/?undo=99999999", "/chat/~all/"):
        assert 'class="cm-banner cm-notice" hidden' in web.get(page).content.decode()
    assert web.get("/chat/~all/?undo=x").status_code == 400


def test_deleted_chats_are_listed_until_they_are_restored(web, ann):
    for number in range(3):
        talk(ann, f"hi {number}", "hello", key=f"s{number}")
        web.post(f"/chat/s{number}/delete/")
    talk(ann, key="open")
    scope = services.user_scope(ann)
    talk(ann, key="other")
    services.purge_session(session_key="other", by=BY, scope=scope, reason="")
    page = web.get("/chat/~deleted/")
    assert titles(page) == ["hi 2", "hi 1", "hi 0"]
    assert "2 messages, until" in page.content.decode()
    restore = re.findall(r'formaction="([^"]+)"', page.content.decode())
    assert web.post(restore[0]).status_code == 302
    assert titles(web.get("/chat/~deleted/")) == ["hi 1", "hi 0"]


def test_deleted_chats_have_pages(web, ann, monkeypatch):
    monkeypatch.setattr("chatmemory.pages.chats.REMOVED_PER_PAGE", 2)
    for number in range(3):
        talk(ann, f"hi {number}", key=f"s{number}")
        web.post(f"/chat/s{number}/delete/")
    first = web.get("/chat/~deleted/")
    assert titles(first) == ["hi 2", "hi 1"]
    second = web.get(f"/chat/~deleted/{older(first)}")
    assert titles(second) == ["hi 0"]
    assert older(second) is None


@pytest.mark.parametrize("action", ["rename", "delete"])
def test_a_chat_on_hold_is_refused_in_words(web, ann, action):
    talk(ann, title="kept", held_at=NOW)
    answer = web.post(f"/chat/talk/{action}/", {"title": "x"}, headers=SCRIPT)
    assert answer.status_code == 409
    assert answer.json() == {
        "code": "held",
        "message": "This chat is on hold, so it can't be renamed or deleted.",
    }
    page = web.post(f"/chat/talk/{action}/", {"title": "x"})
    assert page.status_code == 409
    assert "This chat is on hold" in page.content.decode()
    assert titles(web.get("/chat/~all/")) == ["kept"]


def test_changes_are_limited_in_words(web, ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WRITES_PER_MINUTE": 2}
    talk(ann)
    answers = [rename(web, f"{number}") for number in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    limited = answers[-1]
    assert limited.json()["message"] == "Too many requests. Try again in a moment."
    assert int(limited["Retry-After"]) <= 60


def test_without_javascript_a_chat_is_changed_on_its_own_page(web, ann):
    talk(ann, "hi", title="A title")
    page = web.get("/chat/talk/options/").content.decode()
    assert 'value="A title"' in page
    actions = re.findall(r'(?:form)?action="/chat/talk/(\w+)/"', page)
    assert actions == ["rename", "pin", "archive", "delete"]
    assert web.post("/chat/talk/archive/")["Location"] == "/chat/~all/"
    page = web.get("/chat/talk/options/").content.decode()
    assert "/chat/talk/unarchive/" in page
    assert rename(web, "").status_code == 200
    assert 'value=""' in web.get("/chat/talk/options/").content.decode()
    assert web.post("/chat/talk/rename/", {"title": "b"})["Location"] == "/chat/~archived/"


# Rights


@pytest.mark.parametrize("action", VERBS)
def test_another_users_chat_is_not_found(web, ann, action):
    session = talk(make_user("bob"), "secret", title="kept")
    for headers in (SCRIPT, {}):
        for key in ("talk", "never", "a b"):
            answer = web.post(f"/chat/{key}/{action}/", {"title": "x"}, headers=headers)
            assert answer.status_code == 404
            assert "secret" not in answer.content.decode()
    assert web.get("/chat/talk/options/").status_code == 404
    before = (session.title, session.revision, session.pinned_at, session.archived_at)
    session.refresh_from_db()
    assert (session.title, session.revision, session.pinned_at, session.archived_at) == before
    assert not AuditEntry.objects.exists()


def test_another_users_deletion_cannot_be_undone(web, ann):
    bob = make_user("bob")
    talk(bob)
    entry = services.purge_session(session_key="talk", by=Actor.user(bob), reason="")
    assert web.post(f"/chat/~deleted/{entry.pk}/restore/").status_code == 404
    assert web.post(f"/chat/~deleted/{10**30}/restore/").status_code == 404
    assert (
        'class="cm-banner cm-notice" hidden'
        in web.get(f"/chat/~all/?undo={entry.pk}").content.decode()
    )
    assert titles(web.get("/chat/~deleted/")) == []
    assert not Session.objects.active().exists()


POSTS = [
    *(f"talk/{action}/" for action in VERBS),
    "~deleted/1/restore/",
    "~data/export/",
    "~data/erase/",
]
PAGES = ["~all/", "~archived/", "~deleted/", "~data/", "talk/options/", "~all/?part"]


@pytest.mark.parametrize("address", POSTS)
def test_a_change_needs_the_csrf_token_and_a_post(ann, address):
    talk(ann)
    client = Client(enforce_csrf_checks=True)
    client.force_login(ann)
    assert client.post(f"/chat/{address}", {"title": "x"}).status_code == 403
    assert client.get(f"/chat/{address}").status_code == 405
    assert not AuditEntry.objects.exists()
    token = re.search('name="csrfmiddlewaretoken" value="(.*?)"', client.get("/chat/~all/").text)[1]
    answer = client.post(f"/chat/{address}", {"title": "x", "csrfmiddlewaretoken": token})
    assert answer.status_code != 403 or "CSRF" not in answer.text


@pytest.mark.parametrize("address", POSTS)
def test_a_change_needs_a_login(ann, address):
    talk(ann)
    answer = Client().post(f"/chat/{address}", {"title": "x"})
    assert (answer.status_code, answer["Location"]) == (302, "/accounts/login/?next=/chat/")
    answer = Client().post(f"/chat/{address}", {"title": "x"}, headers=SCRIPT)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("address", PAGES)
def test_a_page_needs_a_login_and_never_writes(web, ann, address):
    talk(ann)
    assert Client().get(f"/chat/{address}").status_code == 302
    assert web.post(f"/chat/{address}").status_code == 405
    answer = web.get(f"/chat/{address}")
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    assert "default-src 'self'" in answer["Content-Security-Policy"]
    assert not AuditEntry.objects.exists()


def test_a_person_who_may_not_chat_may_not_change_a_chat(web, ann, settings):
    talk(ann)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "REACH": "tests.pages.test_chats.refuse"}
    assert web.post("/chat/talk/delete/", headers=SCRIPT).status_code == 403
    assert web.get("/chat/~all/").status_code == 403


def refuse(by: Actor) -> bool:
    return False


# Own data


def allow(settings, *actions):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": actions}


@pytest.mark.parametrize(("format", "start"), [("json", "["), ("markdown", "# ")])
def test_own_chats_are_exported(web, ann, format, start):
    talk(ann, "a question", title="A title")
    talk(make_user("bob"), "a secret")
    answer = web.post("/chat/~data/export/", {"format": format})
    text = answer.getvalue().decode()
    assert text.startswith(start)
    assert "a question" in text
    assert "secret" not in text
    assert "attachment" in answer["Content-Disposition"]
    assert web.post("/chat/~data/export/", {"format": "csv"}).status_code == 400


def test_own_chats_are_deleted_after_a_confirmation(web, ann, settings):
    allow(settings, "erase")
    talk(ann, key="a")
    talk(ann, key="b", archived_at=NOW)
    talk(ann, key="held", title="A held chat", held_at=NOW)
    talk(make_user("bob"), key="c")
    page = web.get("/chat/~data/").content.decode()
    assert "2 chats with 4 messages are deleted permanently" in page
    assert "1 chat is on hold by an operator, and stays." in page
    assert '<li dir="auto">A held chat</li>' in page
    wrong = web.post("/chat/~data/erase/", {"confirm": "Ann"})
    assert wrong.status_code == 400
    assert "This is not your username." in wrong.content.decode()
    assert Session.objects.count() == 4
    done = web.post("/chat/~data/erase/", {"confirm": "ann"}).content.decode()
    assert "2 chats with 4 messages were deleted permanently." in done
    assert '<li dir="auto">A held chat</li>' in done
    assert set(Session.objects.values_list("key", flat=True)) == {"held", "c"}


def test_self_service_that_is_off_is_not_offered(web, ann, settings):
    talk(ann)
    allow(settings)
    page = web.get("/chat/~data/").content.decode()
    assert "/export/" not in page
    assert "/erase/" not in page
    for address in ("export", "erase"):
        answer = web.post(f"/chat/~data/{address}/", {"confirm": "ann"})
        assert answer.status_code == 403
        assert "You do not have permission to do this." in answer.content.decode()
    assert Session.objects.exists()


# Statements


@pytest.mark.parametrize(
    ("address", "count"),
    [
        ("~all/", 3),
        ("~all/?part", 3),
        ("~all/?title=hi", 5),
        ("~archived/", 2),
        ("~deleted/", 1),
        ("pinned/", 4),
        ("old/", 6),
        (f"{uuid.UUID(int=0, version=4)}/", 4),
    ],
)
def test_a_page_executes_a_fixed_number_of_statements(web, ann, address, count):
    talk(ann, key="old")
    for number in range(CHATS_PER_PAGE + 1):
        talk(ann, key=f"s{number}")
    for key in ("pinned", "pinned2"):
        talk(ann, key=key, pinned_at=NOW)
    for number in range(2):
        talk(ann, key=f"archived{number}", archived_at=NOW)
        talk(ann, key=f"removed{number}")
        web.post(f"/chat/removed{number}/delete/")
    with CaptureQueriesContext(connection) as queries:
        assert web.get(f"/chat/{address}").status_code == 200
    statements = [query["sql"] for query in queries if "chatmemory_" in query["sql"]]
    assert len(statements) == count, "\n".join(statements)


MANY_CHATS = """
    INSERT INTO chatmemory_session
        (scope, key, instructions, metadata, epoch, last_seq, last_message_at)
    SELECT CASE WHEN mod(number, 6) = 0 THEN %s ELSE 'user:' || -number END,
        'k' || number, '', '{}', 1, 1, now()
    FROM generate_series(1, 60000) AS number
"""


@pytest.mark.slow
def test_the_list_of_ten_thousand_chats_is_read_by_an_index(web, ann, postgresql):
    with connection.cursor() as cursor:
        cursor.execute(MANY_CHATS, [services.user_scope(ann)])
        cursor.execute("ANALYZE chatmemory_session")
    for address in ("~all/", "~all/?title=h", "~archived/"):
        with CaptureQueriesContext(connection) as queries:
            assert web.get(f"/chat/{address}").status_code == 200
        of_scope = [query["sql"] for query in queries if '"scope" = ' in query["sql"]]
        assert of_scope
        for statement in of_scope:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN {statement}")
                plan = "\n".join(row for (row,) in cursor.fetchall())
            assert "Seq Scan" not in plan


# Nothing else is needed


class Urls(ModuleType):
    """The addresses of a project that has the pages alone."""

    urlpatterns = [  # noqa: RUF012
        path("", RedirectView.as_view(url="chat/"), name="home"),  # in a template of the demo
        path("chat/", include("chatmemory.urls")),
    ]


def test_the_pages_need_no_rest_api(web, ann, settings):
    settings.ROOT_URLCONF = Urls("urls")
    settings.LOGIN_URL = "/login/"
    talk(ann)
    for address in (*PAGES, "talk/"):
        assert web.get(f"/chat/{address}").status_code == 200
    assert rename(web, "new").json() == {"title": "new"}


def test_a_new_chat_stores_nothing(web):
    users = User.objects.count()
    with CaptureQueriesContext(connection) as queries:
        assert web.get("/chat/~new/", follow=True).status_code == 200
    assert not [query for query in queries if re.match("INSERT|UPDATE|DELETE", query["sql"])]
    assert (Session.objects.count(), User.objects.count()) == (0, users)
