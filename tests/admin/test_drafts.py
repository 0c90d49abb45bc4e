"""What an operator types survives an expired login, in the tab alone, and only until it is sent."""

from __future__ import annotations

import json
import re

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as Login
from playwright.sync_api import expect

from chatmemory.models import Job, SessionNote
from tests.admin.screens import Screens, press
from tests.admin.visits import ACTING, LIST, action_url, operator, talk_of

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

PASSWORD = "a long password"


@pytest.fixture
def olga():
    client = operator(*ACTING, "note_session")
    user = User.objects.get(username="olga")
    user.set_password(PASSWORD)
    user.save()
    client.force_login(user)
    return client


@pytest.fixture
def tab(launch, chromium, live_server, olga):
    """The tab of Olga, without problems at the end."""
    cookie = olga.cookies[django_settings.SESSION_COOKIE_NAME].value
    screens = Screens(launch(chromium), live_server.url, cookie)
    yield screens
    assert screens.problems == []


@pytest.fixture
def talk():
    return talk_of(None, *(f"text {n}" for n in range(101)), title="Kettle")


def log_in(page, name="olga"):
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    press(page.get_by_role("button", name="Log in"))


def type_in(page, label, text):
    page.wait_for_load_state()  # the script listens
    page.get_by_label(label).fill(text)


def confirm(page):
    press(page.locator(".submit-row button:not([name=preview])"))


def stored(page):
    """Return the values of the drafts in the storage of the tab."""
    page.wait_for_load_state()  # the script has run
    found = page.evaluate("Object.entries({...sessionStorage})")
    drafts = [json.loads(draft) for name, draft in found if name.startswith("chatmemory:")]
    return [draft["values"] for draft in drafts]


def test_a_typed_reason_survives_an_expired_login_and_is_sent_once(tab, talk):
    page = tab.open("purge", action_url("purge", talk))
    type_in(page, "Reason", "spam from a form")
    type_in(page, "Messages to remove", "101")
    assert stored(page) == [{"reason": "spam from a form"}]
    Login.objects.all().delete()
    confirm(page)
    log_in(page)
    expect(page.get_by_label("Reason")).to_have_value("spam from a form")
    expect(page.get_by_label("Messages to remove")).to_have_value("")
    type_in(page, "Messages to remove", "101")
    confirm(page)
    expect(page.get_by_text("“Kettle” with its 101 messages removed.")).to_be_visible()
    assert stored(page) == []
    assert Job.objects.get().reason == "spam from a form"


def test_a_typed_number_keeps_its_meaning(tab, talk):
    page = tab.open("trim", action_url("trim", talk))
    page.wait_for_load_state()
    page.get_by_label("Limit").select_option("before_seq")
    type_in(page, "Number or date", "7")
    Login.objects.all().delete()
    press(page.get_by_role("button", name="Preview"))
    log_in(page)
    expect(page.get_by_label("Limit")).to_have_value("before_seq")
    expect(page.get_by_label("Number or date")).to_have_value("7")


def test_a_note_survives_an_expired_login_and_is_added_once(tab, talk):
    page = tab.open("note", f"{LIST}{talk.pk}/change/")
    note = page.get_by_label("New note")
    type_in(page, "New note", "Call back")
    Login.objects.all().delete()
    press(page.get_by_role("button", name="Add note"))
    log_in(page)
    expect(note).to_have_value("Call back")
    press(page.get_by_role("button", name="Add note"))
    expect(page.locator("#notes .chatmemory-text")).to_have_text("Call back")
    expect(note).to_have_value("")
    assert stored(page) == []
    assert SessionNote.objects.count() == 1


def test_an_error_of_the_form_keeps_what_was_typed_since(tab, talk):
    page = tab.open("purge", action_url("purge", talk))
    type_in(page, "Reason", "spam")
    confirm(page)
    expect(page.get_by_text("This field is required.")).to_be_visible()
    type_in(page, "Reason", "spam from a form")
    page.reload()
    expect(page.get_by_label("Reason")).to_have_value("spam from a form")


@pytest.mark.parametrize("way", ["Cancel", "Log out"])
def test_a_draft_ends_with_its_form_or_the_login(tab, talk, way):
    page = tab.open("hold", action_url("hold", talk))
    type_in(page, "Reason", "a lawsuit")
    assert stored(page) == [{"reason": "a lawsuit"}]
    role = "link" if way == "Cancel" else "button"
    press(page.get_by_role(role, name=re.compile(way, re.IGNORECASE)))
    expect(page).not_to_have_url(re.compile("action/hold"))
    assert stored(page) == []


def make_otto():
    """Store another operator, who can log in."""
    operator(*ACTING, name="otto")
    otto = User.objects.get(username="otto")
    otto.set_password(PASSWORD)
    otto.save()


def test_another_operator_in_the_tab_gets_no_draft(tab, talk):
    make_otto()
    page = tab.open("hold", action_url("hold", talk))
    type_in(page, "Reason", "a lawsuit")
    Login.objects.all().delete()
    confirm(page)
    log_in(page, "otto")
    expect(page.get_by_label("Reason")).to_have_value("")
    assert stored(page) == []


def test_another_operator_finds_no_draft_on_a_page_without_a_form(tab, talk):
    make_otto()
    page = tab.open("hold", action_url("hold", talk))
    type_in(page, "Reason", "a lawsuit")
    Login.objects.all().delete()
    page.goto(tab.address + LIST)
    log_in(page, "otto")
    expect(page.locator("#result_list")).to_be_visible()
    page.wait_for_load_state()
    assert stored(page) == []


def test_a_form_of_which_the_list_shows_the_result_begins_empty(tab, talk):
    address = f"{action_url('tag', talk)}&back={LIST}"
    page = tab.open("tag", address)
    type_in(page, "Tag", "vip")
    type_in(page, "Reason", "a request")
    confirm(page)
    expect(page.get_by_text("Tag added to “Kettle”.")).to_be_visible()
    assert stored(page) == []
    tab.open("tag", address)
    expect(page.get_by_label("Tag")).to_have_value("")
