"""The page of a session in a real browser: keys, folds, phones, and the host's policy."""

from __future__ import annotations

import pytest
from django.conf import settings as django_settings
from playwright.sync_api import expect

from tests.admin.screens import press
from tests.admin.test_admin import at, operator, talk_of
from tests.browsers import TIMEOUT_MS
from tests.factories import make_user

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:"
"""A host's policy, which forbids inline scripts and styles."""

TABLE = f"| a | b |\n|---|---|\n| {'y' * 300} | z |"
LONG = f"A **bold** word\n\n```\n{'x' * 500}\n```\n\n{TABLE}"


@pytest.fixture
def opened(launch, chromium, live_server):
    """Return a function that opens a page as an operator, and the problems of all pages."""
    rights = ("view_session", "view_transcript", "redact_message", "note_session", "trim_history")
    cookie = operator(*rights).cookies[django_settings.SESSION_COOKIE_NAME].value
    problems = []

    def on_console(line):
        if line.type == "error" and "Failed to load resource" not in line.text:
            problems.append(line.text)

    def on_response(response):
        if response.status >= 400 and not response.url.endswith("/favicon.ico"):
            problems.append(response.url)

    def add_policy(route):
        response = route.fetch(max_redirects=0)
        route.fulfill(
            response=response, headers={**response.headers, "content-security-policy": POLICY}
        )

    browser = launch(chromium)

    def open_page(path, **options):
        context = browser.new_context(base_url=live_server.url, **options)
        context.set_default_timeout(TIMEOUT_MS)
        name = django_settings.SESSION_COOKIE_NAME
        context.add_cookies([{"name": name, "value": cookie, "url": live_server.url}])
        context.route("**/*", add_policy)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", on_console)
        page.on("response", on_response)
        page.goto(path)
        return page

    yield open_page
    assert problems == []


@pytest.fixture
def talk():
    return talk_of(make_user("ann"), *["hi", LONG] * 30)


@pytest.fixture
def leak():
    return talk_of(make_user("ann"), "My key is sk-1", "I use sk-1")


def test_keys_move_between_messages_and_pages(talk, opened):
    page = opened(at("change", talk))
    for key, seq in (("j", 11), ("j", 12), ("j", 13), ("k", 12)):
        page.keyboard.press(key)
        expect(page.locator(f"#m{seq}")).to_be_focused()
    assert page.locator("#m12").evaluate("row => getComputedStyle(row).outlineStyle") == "solid"
    page.keyboard.press("[")
    expect(page.locator("#m10")).to_be_attached()
    page.wait_for_load_state()  # the keys work once the script is loaded
    page.keyboard.press("]")
    expect(page.locator("#m60")).to_be_attached()
    page.wait_for_load_state()
    page.keyboard.press("/")
    search = page.get_by_label("Find in this conversation")
    expect(search).to_be_focused()
    page.keyboard.type("j[/")
    expect(search).to_have_value("j[/")
    page.keyboard.press("Control+j")
    expect(search).to_be_focused()


def test_a_permalink_scrolls_to_its_message(talk, opened):
    page = opened(f"{at('change', talk)}?seq=20#m20")
    expect(page.locator("#m20")).to_be_in_viewport()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1400, "light"),
        (390, "dark"),
        pytest.param(1400, "dark", marks=pytest.mark.long),
        pytest.param(390, "light", marks=pytest.mark.long),
    ],
)
def test_no_page_is_wider_than_the_window(talk, opened, width, scheme):
    page = opened(at("change", talk), viewport={"width": width, "height": 900}, color_scheme=scheme)
    for path in (at("change", talk), at("message", talk, 2), at("search", talk) + "?q=bold"):
        page.goto(path)
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"), path


def test_an_operator_redacts_a_key_and_its_echo(leak, opened):
    page = opened(at("change", leak))
    press(page.locator("#m1").get_by_role("link", name="Redact…"))
    page.get_by_label("Text to find").fill("sk-1")
    press(page.get_by_role("button", name="Find the text"))
    expect(page.get_by_label("Message 2, assistant")).to_be_checked()
    page.get_by_label("Reason").fill("a key")
    page.get_by_label("Texts to redact").fill("2")
    press(page.get_by_role("button", name="Redact", exact=True))
    expect(page.get_by_text("2 texts were redacted.")).to_be_visible()
    expect(page.get_by_text("sk-1")).to_have_count(0)


def test_a_note_is_added_by_the_form(talk, opened):
    page = opened(at("change", talk))
    page.get_by_label("New note").fill("Call back")
    page.get_by_role("button", name="Add note").click()
    expect(page.locator("#notes .chatmemory-text")).to_have_text("Call back")


@pytest.mark.parametrize(
    ("width", "limit"),
    [(1280, 300), pytest.param(390, 420, marks=pytest.mark.long)],
)
def test_the_conversation_begins_in_the_upper_part_of_the_window(talk, opened, width, limit):
    page = opened(at("change", talk), viewport={"width": width, "height": 800})
    page.wait_for_load_state()
    assert page.locator("li.chatmemory-message").first.bounding_box()["y"] <= limit


def test_the_bar_stays_in_view_and_does_not_cover_a_message(talk, opened):
    page = opened(f"{at('change', talk)}?seq=40#m40", viewport={"width": 1280, "height": 800})
    bar = page.locator(".chatmemory-tools").bounding_box()
    assert bar["y"] >= 0
    assert page.locator("#m40").bounding_box()["y"] >= bar["y"] + bar["height"]


def test_menus_close_with_escape_and_a_click_elsewhere(talk, opened):
    page = opened(at("change", talk))
    page.wait_for_load_state()
    menu, keys = page.locator(".chatmemory-menu"), page.locator("#chatmemory-keys")
    page.keyboard.press("?")
    expect(keys.get_by_text("next and previous message")).to_be_visible()
    menu.locator("summary").click()
    expect(menu).to_have_attribute("open", "")
    expect(keys).not_to_have_attribute("open", "")
    page.keyboard.press("Escape")
    expect(menu).not_to_have_attribute("open", "")
    page.keyboard.press("?")
    page.locator("#m12").click()
    expect(keys).not_to_have_attribute("open", "")


def test_what_a_message_offers_appears_with_the_pointer_and_the_focus(talk, opened):
    page = opened(at("change", talk))
    page.wait_for_load_state()
    row = page.locator("#m13")
    footer = row.locator("footer")
    expect(footer).to_have_css("opacity", "0")
    row.hover()
    expect(footer).to_have_css("opacity", "1")
    page.mouse.move(0, 0)
    expect(footer).to_have_css("opacity", "0")
    row.get_by_role("link", name="Details").focus()
    expect(footer).to_have_css("opacity", "1")
