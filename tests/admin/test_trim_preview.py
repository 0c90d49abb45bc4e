"""The preview of a trim follows what is typed, and never what the operator did not see."""

from __future__ import annotations

import re

import pytest
from django.conf import settings as django_settings
from playwright.sync_api import expect

from chatmemory.models import Job
from tests.admin.screens import Screens, press
from tests.admin.visits import ACTING, action_url, operator, talk_of

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def talk():
    return talk_of(None, *(f"text {n}" for n in range(300)), title="Kettle")


@pytest.fixture
def screens(launch, chromium, live_server, talk):
    cookie = operator(*ACTING).cookies[django_settings.SESSION_COOKIE_NAME].value
    return Screens(launch(chromium), live_server.url, cookie)


@pytest.fixture
def page(screens, talk):
    """The confirmation, whose number has the focus and is selected."""
    page = screens.open("trim", action_url("trim", talk))
    page.wait_for_load_state()
    yield page
    assert screens.problems == []


def button(page):
    return page.locator(".submit-row button:not([name=preview])")


def test_the_preview_and_the_button_follow_the_typed_number(page, talk):
    page.keyboard.type("260")
    expect(button(page)).to_have_text(re.compile("Trim 40 messages"))
    assert "Remove messages 1 to 40" in page.locator("#chatmemory-preview").inner_text()
    page.get_by_label("Reason").fill("too long")
    press(button(page))
    expect(page.locator(".messagelist")).to_contain_text("40 messages of “Kettle” removed.")
    talk.refresh_from_db()
    assert talk.first_seq == 41


def test_an_error_of_the_typed_value_comes_and_goes(page):
    page.get_by_label("Number or date").fill("x")
    errors = page.locator(".field-value .errorlist")
    expect(errors).to_have_count(1)
    page.get_by_label("Number or date").fill("260")
    expect(errors).to_have_count(0)
    expect(button(page)).to_have_text(re.compile("Trim 40 messages"))


def test_the_number_to_type_comes_and_goes_with_the_preview(page):
    count = page.get_by_label("Messages to remove")
    expect(count).to_be_visible()  # 250 of 300
    page.keyboard.type("260")
    expect(count).to_have_count(0)
    page.get_by_label("Number or date").fill("100")
    expect(count).to_be_visible()
    assert button(page).inner_text() == "Trim"
    page.get_by_label("Number or date").fill("x")
    expect(page.locator("#chatmemory-preview")).to_contain_text("Remove messages of “Kettle”?")


def test_a_number_without_its_preview_is_not_confirmed(page, talk):
    """The preview does not arrive; the button acts again, and the server asks again."""
    page.keyboard.type("260")
    expect(button(page)).to_have_text(re.compile("Trim 40 messages"))
    page.route(page.url, lambda route: route.fulfill(body="<p>Log in</p>"))
    page.get_by_label("Number or date").fill("220")
    expect(button(page)).to_be_enabled()
    page.unroute(page.url)
    page.get_by_label("Reason").fill("too long")
    press(button(page))
    expect(page.locator(".errornote")).to_contain_text("Nothing was changed; confirm again.")
    expect(button(page)).to_have_text(re.compile("Trim 80 messages"))
    talk.refresh_from_db()
    assert talk.first_seq == 1
    assert not Job.objects.exists()


def test_a_cancelled_form_leaves_no_draft_after_a_preview(page):
    page.keyboard.type("260")
    expect(button(page)).to_have_text(re.compile("Trim 40 messages"))
    page.get_by_role("link", name="Cancel").click()
    page.wait_for_load_state()
    assert page.evaluate("sessionStorage.length") == 0
