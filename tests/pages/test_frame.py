"""The frame of the pages in a real browser: the way in, the menu of the account, and the drawer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.auth.views import LogoutView
from django.template.loader import render_to_string
from django.urls import include, path
from django.views.generic import RedirectView
from playwright.sync_api import Page, Route, expect

from chatmemory.pages.adoption import Adoption
from tests.browsers import Chat, open_account
from tests.pages import test_browser
from tests.pages.scenes import TALK, open_chat, serve_chat, session_page
from tests.pages.test_appearance import context, tab
from tests.pages.test_widget import check_access

__all__ = ["context", "tab"]

IN_BROWSER = [pytest.mark.browser, pytest.mark.slow]
kept, server, login = test_browser.kept, test_browser.server, test_browser.login
browser, desk = test_browser.browser, test_browser.desk

PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True,
    "has_touch": True,
}
PASSWORD = "a long password"
CHAT = path("chat/", include("chatmemory.urls"))
HOME = path("", RedirectView.as_view(url="chat/"), name="home")  # in a template of the demo
OUT = path("out/", LogoutView.as_view(), name="logout")


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_login_leads_to_an_empty_chat_whose_text_box_has_the_focus(desk):
    password = PBKDF2PasswordHasher().encode(PASSWORD, "salt", 1)  # the server has Django's hashers
    User.objects.update(password=password)
    desk.context = desk.browser.new_context()
    page = desk.page()
    page.goto(f"{desk.server.address}/accounts/login/")
    page.get_by_label("Username").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/chat/[0-9a-f-]{36}/$"))
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    expect(Chat(page).box).to_be_focused()
    expect(page.get_by_role("navigation", name="Chats")).to_be_visible()
    assert page.locator(".cm-log").bounding_box()["x"] > 200  # the list is beside it
    page.keyboard.type("one")
    page.keyboard.press("Enter")
    Chat(page).expect_rows("one", "one")


# The menu of the account


class TestTheMenu:
    pytestmark = IN_BROWSER

    def test_it_is_operated_by_keyboard(self, tab):
        open_chat(tab)
        expect(Chat(tab).box).to_be_focused()
        opener = tab.get_by_role("button", name="Account")
        menu = tab.get_by_role("navigation", name="Account")
        keys = tab.keyboard
        opener.focus()
        keys.press("Enter")
        expect(menu).to_be_visible()
        shown = menu.locator("a, button, select").filter(visible=True)
        names = ["All chats", "Your data", "Keyboard shortcuts", "Sign out"]
        expect(shown.filter(has_not=tab.locator("option"))).to_have_text(names)
        expect(menu).to_contain_text("anna")
        keys.press("Tab")
        expect(menu.get_by_label("Appearance")).to_be_focused()
        for name in names:
            keys.press("Tab")
            expect(shown.filter(has_text=name)).to_be_focused()
        keys.press("Escape")
        expect(menu).to_be_hidden()
        expect(opener).to_be_focused()

    def test_it_shows_the_keyboard_shortcuts_and_gets_the_focus_back(self, tab):
        open_chat(tab)
        expect(Chat(tab).box).to_be_focused()
        menu = open_account(tab)
        menu.get_by_role("button", name="Keyboard shortcuts").press("Enter")
        expect(menu).to_be_hidden()
        expect(tab.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
        tab.keyboard.press("Escape")
        expect(tab.get_by_role("button", name="Account")).to_be_focused()

    def test_it_closes_when_the_focus_leaves_it_or_with_a_click_elsewhere(self, tab):
        open_chat(tab)
        menu = open_account(tab)
        menu.get_by_role("button", name="Sign out").focus()
        tab.keyboard.press("Tab")
        expect(menu).to_be_hidden()
        open_account(tab)
        tab.locator(".cm-log").click()
        expect(menu).to_be_hidden()

    def test_it_has_its_style_without_javascript(self, launch, chromium):
        with launch(chromium).new_context(java_script_enabled=False) as context:
            page = context.new_page()
            serve_chat(page, session_page(), language="en")
            opener = page.get_by_role("button", name="Account")
            opener.click()
            menu = page.get_by_role("navigation", name="Account")
            expect(menu.get_by_role("link", name="All chats")).to_be_visible()
            expect(menu).to_have_css("border-top-width", "1px")
            below, above = menu.bounding_box(), opener.bounding_box()
            assert below
            assert above
            assert 0 <= below["y"] - (above["y"] + above["height"]) < 10


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("is_done", [False, True])
def test_the_offer_to_move_earlier_chats_has_its_style_above_a_chat(tab, is_done):
    title = "A long title. " * 20
    adoption = Adoption(is_done=is_done, visitor="v", titles=[title], more=2)
    serve_chat(tab, session_page(rows=[], adoption=adoption), language="en")
    offer = tab.locator(".cm-offer")
    expect(offer).to_have_css("border-top-width", "1px")
    box = offer.bounding_box()
    lane = tab.locator(".cm-box").bounding_box()
    assert box
    assert lane
    assert (box["x"], box["width"]) == (lane["x"], lane["width"])
    assert box["height"] < 250
    check_access(tab)


# The side of the titles

EDGES = """node => {
    const range = new Range();
    range.selectNodeContents(node);
    const [text, box] = [range.getBoundingClientRect(), node.getBoundingClientRect()];
    return [text.left - box.left, box.right - text.right].map(Math.round);
}"""
"""How far the text of a node is from its left and its right edge."""


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.firefox
@pytest.mark.parametrize(("language", "side"), [("en", 0), ("ar", 1)])
def test_titles_in_any_script_are_at_the_side_of_the_page(launch, browser_path, language, side):
    with launch(browser_path).new_context() as context:
        page = context.new_page()
        open_chat(page, language=language)
        for title in ("Plans", "\u062e\u0637\u0637", "7"):
            for node in (page.locator(".cm-list .cm-title").first, page.locator("h1")):
                node.evaluate("(node, title) => { node.textContent = title }", title)
                edges = node.evaluate(EDGES)
                assert edges[side] == 0 < edges[1 - side], (title, edges)
        heading = page.locator("h1")  # a long one is cut off at its end
        heading.evaluate("node => { node.textContent = 'A long title. '.repeat(50) }")
        assert heading.evaluate(EDGES)[0] == 0


# Signing out


def urls(*patterns) -> ModuleType:
    """Return the URLs of a project with the chat pages."""
    module = ModuleType("urls_of_a_project")
    vars(module)["urlpatterns"] = [CHAT, HOME, *patterns]
    return module


def signs_out_at(user: User | AnonymousUser | None = None) -> str | None:
    """Return where the pages sign out."""
    html = render_to_string("chatmemory/problem.html", {"user": user or User(username="ann")})
    found = re.search(r'<form id="cm-sign-out" method="post" action="([^"]+)">', html)
    return found[1] if found else None


ALLAUTH = path("accounts/logout/", LogoutView.as_view(), name="account_logout")
NAMED = path("users/", include(([OUT], "users")))
OWN = path("members/", include(([path("bye/", LogoutView.as_view(), name="bye")], "members")))


@pytest.mark.parametrize(
    ("patterns", "setting", "address"),
    [
        ([OUT], None, "/out/"),
        ([ALLAUTH], None, "/accounts/logout/"),
        ([NAMED], None, "/users/out/"),
        ([OWN], "members:bye", "/members/bye/"),
        ([OWN, OUT], "members:bye", "/members/bye/"),
        ([], "/elsewhere/out/", "/elsewhere/out/"),
        ([], None, None),
        ([OWN], None, None),
        ([OUT], "members:bye", None),
        ([OUT], "https://sso.example/out", None),
        ([OUT], "//sso.example/out", None),
    ],
)
def test_sign_out_leads_to_the_setting_or_to_a_usual_name(settings, patterns, setting, address):
    settings.ROOT_URLCONF = urls(*patterns)
    settings.CHATMEMORY = {"LOGOUT_URL": setting}
    assert signs_out_at() == address
    assert signs_out_at(AnonymousUser()) is None


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "setting", "address"),
    [(ALLAUTH, None, "/accounts/logout/"), (OWN, "members:bye", "/members/bye/")],
)
def test_sign_out_posts_the_csrf_token(tab, settings, pattern, setting, address):
    settings.ROOT_URLCONF = urls(pattern)
    settings.CHATMEMORY = {"LOGOUT_URL": setting}
    open_chat(tab)
    with tab.expect_request(lambda request: request.method == "POST") as sent:
        open_account(tab).get_by_role("button", name="Sign out").click()
    assert sent.value.url.endswith(address)
    assert sent.value.post_data == "csrfmiddlewaretoken=token"


# The drawer of a phone


@pytest.fixture
def phone(tab: Page) -> Iterator[Page]:
    """A phone with a chat."""
    assert tab.context.browser
    with tab.context.browser.new_context(**PHONE) as context:
        page = context.new_page()
        open_chat(page, TALK)
        yield page


def swipe(page: Page, start: tuple[int, int], end: tuple[int, int]) -> None:
    """Move a finger over the screen."""
    session = page.context.new_cdp_session(page)
    for kind, points in (("touchStart", [start]), ("touchMove", [end]), ("touchEnd", [])):
        touches = [{"x": x, "y": y} for x, y in points]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})


class TestTheDrawer:
    pytestmark = IN_BROWSER

    def test_a_button_opens_it_the_focus_stays_in_it_and_escape_leads_back(self, phone):
        opener = phone.get_by_role("button", name="Chats", exact=True)
        drawer = phone.locator(".cm-aside")
        expect(drawer).to_be_hidden()
        expect(opener).to_have_attribute("aria-expanded", "false")
        opener.tap()
        closer = drawer.get_by_role("button", name="Close")
        expect(closer).to_be_focused()
        expect(opener).to_have_attribute("aria-expanded", "true")
        expect(drawer.get_by_role("link", name="Packing list")).to_be_visible()
        expect(phone.get_by_role("dialog", name="Chats", exact=True)).to_be_visible()
        check_access(phone, "html")
        for _ in range(30):
            phone.keyboard.press("Tab")
            outside = "!document.activeElement.closest('.cm-aside, body:not(:has(:focus))')"
            assert not phone.evaluate(outside)
        open_account(phone)
        phone.keyboard.press("Escape")
        expect(drawer).to_be_visible()
        phone.keyboard.press("Escape")
        expect(drawer).to_be_hidden()
        expect(opener).to_be_focused()
        opener.tap()
        closer.tap()
        expect(drawer).to_be_hidden()
        expect(drawer).not_to_have_attribute("role", "dialog")
        expect(opener).to_be_focused()

    def test_a_swipe_opens_and_closes_it(self, phone):
        drawer = phone.locator(".cm-aside")
        swipe(phone, (40, 500), (200, 510))
        expect(drawer).to_be_visible()
        expect(drawer.get_by_role("button", name="Close")).to_be_focused()
        swipe(phone, (250, 500), (60, 505))
        expect(drawer).to_be_hidden()
        expect(phone.get_by_role("button", name="Chats", exact=True)).to_be_focused()
        swipe(phone, (40, 300), (200, 700))  # scrolls
        swipe(phone, (40, 500), (80, 500))  # short
        phone.wait_for_timeout(200)
        expect(drawer).to_be_hidden()
        expect(phone.locator(".cm-conversation")).not_to_have_attribute("inert", "")

    @pytest.mark.regression
    def test_the_first_swipe_opens_it_even_if_it_ends_before_the_script_is_loaded(self, phone):
        held: list[Route] = []
        phone.route("**/drawer.js", lambda route: held.append(route))
        with phone.expect_request("**/drawer.js"):
            swipe(phone, (40, 500), (200, 510))
        held.pop().fallback()
        expect(phone.locator(".cm-aside")).to_be_visible()

    def test_a_swipe_over_what_scrolls_sideways_does_not(self, phone):
        phone.get_by_role("button", name="Chats", exact=True).tap()
        phone.locator(".cm-aside").get_by_role("button", name="Close").tap()
        expect(phone.locator(".cm-aside")).to_be_hidden()
        phone.locator(".cm-rich pre").evaluate("node => { node.textContent = 'x'.repeat(500); }")
        box = phone.locator(".cm-rich pre").bounding_box()
        y = int(box["y"] + box["height"]) - 15
        swipe(phone, (60, y), (250, y))
        phone.wait_for_timeout(200)
        expect(phone.locator(".cm-aside")).to_be_hidden()

    def test_a_touch_beside_it_and_a_wider_window_close_it(self, phone):
        opener = phone.get_by_role("button", name="Chats", exact=True)
        opener.tap()
        drawer = phone.locator(".cm-aside")
        expect(drawer).to_be_visible()
        phone.touchscreen.tap(380, 400)
        expect(drawer).to_be_hidden()
        opener.tap()
        phone.set_viewport_size({"width": 1000, "height": 844})
        expect(phone.locator(".cm-conversation")).not_to_have_attribute("inert", "")
        expect(drawer).to_be_visible()  # the list beside the chat

    def test_its_key_opens_it_at_the_search(self, phone):
        phone.keyboard.press("Control+k")
        expect(phone.get_by_role("searchbox")).to_be_focused()

    def test_one_bar_is_above_the_chat_as_high_as_the_window(self, phone):
        log = phone.locator(".cm-log").bounding_box()
        assert log["y"] < 60
        assert log["height"] > 600
