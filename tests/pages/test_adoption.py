"""The question above a new chat to a user who was a visitor: a form, without JavaScript."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import pytest
from django.db.models import F

from chatmemory import services
from chatmemory.access.visitors import COOKIE
from chatmemory.models import DatabaseNow, Session, Visitor
from chatmemory.pages.adoption import DECLINED
from tests.api.test_visitors import CSRF, LOGIN, Browser, signed_in, with_sessions
from tests.factories import make_messages, make_user, make_visitor

CHATS = "/chat/"
ANSWER = "/chat/~adoption/"
QUESTION = "Move your earlier chats to your account?"
DONE = "Your earlier chats are in your account now."

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _allowed(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True}


def shown(browser):
    """Return the fields of the question's form, or the note, or None."""
    page = unescape(browser.get(CHATS, follow=True).content.decode())
    if DONE in page:
        return DONE
    if QUESTION not in page:
        return None
    form = page[page.index(f'action="{ANSWER}"') :].partition("</form>")[0]
    return re.findall(r'<li dir="auto">(.*?)</li>', form)


def answer(browser, guest, **fields):
    data = {"visitor": guest.actor.id, "csrfmiddlewaretoken": CSRF, **fields}
    return browser.post(ANSWER, data, headers={"x-csrftoken": None})


def test_a_user_confirms_and_is_notified_once():
    guest = with_sessions("a", "b")
    services.update_session(session_key="b", by=guest.actor, title="A \u202e kettle")
    browser, ann = signed_in(guest)
    assert shown(browser) == ["A ⟦U+202E⟧ kettle", "hi"]
    assert not services.sessions_of(ann).exists()
    assert answer(browser, guest, move="")["Location"] == CHATS
    assert services.sessions_of(ann).count() == 2
    assert answer(browser, guest, move="").status_code == 302  # the button was pressed again
    assert shown(browser) == DONE
    assert browser.cookies[COOKIE].value == ""
    del browser.cookies[COOKIE]
    assert shown(browser) is None


def test_a_user_declines_until_the_next_login():
    guest = with_sessions("a")
    browser, ann = signed_in(guest)
    assert "adopt" in browser.get("/shop/").content.decode()
    answer(browser, guest)
    assert shown(browser) is None
    assert " adopt" not in browser.get("/shop/").content.decode()
    assert not services.sessions_of(ann).exists()
    browser.logout()
    assert shown(signed_in(guest)[0]) == ["hi"]
    assert shown(signed_in(guest, "bob")[0]) == ["hi"]


def test_only_the_visitor_of_the_browser_is_declined():
    """The value is stored in the login: it must not be a text of any length."""
    guest, other = with_sessions("a"), make_visitor()
    browser, _ = signed_in(guest)
    answer(browser, other)
    assert DECLINED not in browser.session
    assert shown(browser) == ["hi"]


def test_many_chats_are_counted():
    guest = with_sessions(*map(str, range(7)))
    browser, _ = signed_in(guest)
    assert shown(browser) == ["hi"] * 5
    assert "and 2 more" in browser.get(CHATS, follow=True).content.decode()


def test_another_page_cannot_answer():
    guest = with_sessions("a")
    browser, ann = signed_in(guest)
    assert answer(browser, guest, move="", csrfmiddlewaretoken="b" * 32).status_code == 403
    assert not services.sessions_of(ann).exists()


def test_only_the_visitor_whom_the_user_saw_is_adopted():
    guest, planted = with_sessions("a"), with_sessions("b")
    for browser, ann in (signed_in(planted), signed_in(), signed_in(make_visitor(days=-1))):
        answer(browser, guest, move="")
        assert not services.sessions_of(ann).exists()


def test_nothing_is_asked_without_a_chat_or_after_another_users_adoption(settings):
    taken = with_sessions("a")
    services.adopt_visitor(by=signed_in(name="bob")[1], visitor=taken.actor)
    old = with_sessions("b")
    Visitor.objects.filter(digest=old.actor.id).update(ends_at=DatabaseNow())
    for guest in (None, make_visitor(), taken, old):
        assert shown(signed_in(guest)[0]) is None
    guest = with_sessions("c")
    assert shown(signed_in(guest)[0]) == ["hi"]
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": False}
    assert shown(signed_in(guest)[0]) is None
    answer(signed_in(guest)[0], guest, move="")
    assert not services.sessions_of(signed_in(guest)[1]).exists()


@pytest.mark.parametrize(("minutes", "expected"), [(59, DONE), (61, ["hi", "hi"])])
def test_with_auto_a_note_replaces_the_question_about_recent_chats(settings, minutes, expected):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_ADOPT": "auto"}
    guest = with_sessions("a", "b")
    ago = F("last_message_at") - timedelta(minutes=minutes)
    Session.objects.filter(key="a").update(last_message_at=ago)
    make_user("ann")
    browser = Browser(guest.token)
    browser.post("/accounts/login/", LOGIN)
    assert shown(browser) == expected


def test_with_auto_a_visitor_without_a_chat_gets_no_note(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "VISITOR_ADOPT": "auto"}
    make_user("ann")
    browser = Browser(make_visitor().token)
    browser.post("/accounts/login/", LOGIN)
    assert shown(browser) is None


def test_more_chats_than_one_transaction_locks_are_refused(monkeypatch):
    guest = with_sessions("a", "b")
    browser, ann = signed_in(guest)
    monkeypatch.setattr("chatmemory.services.adoption.MAX_VISITOR_SESSIONS", 1)
    response = answer(browser, guest, move="")
    assert response.status_code == 409
    assert "changed meanwhile" in response.content.decode()
    assert not services.sessions_of(ann).exists()


def test_a_user_who_had_to_sign_in_first_sees_the_list_again():
    guest = with_sessions("a")
    address = answer(Browser(guest.token), guest, move="")["Location"]
    assert address == f"/accounts/login/?next={ANSWER}"
    assert signed_in(guest)[0].get(ANSWER)["Location"] == CHATS


def test_a_title_of_a_visitor_is_no_markup():
    guest = make_visitor()
    here = {"session_key": "a", "by": guest.actor}
    services.append_messages(**here, messages=make_messages("<b>bold</b>"), create=True)
    assert "&lt;b&gt;bold" in signed_in(guest)[0].get(CHATS, follow=True).content.decode()
