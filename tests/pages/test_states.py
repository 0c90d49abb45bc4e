"""The chat page as people use it: by keyboard, by touch, offline, and over a slow network."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browsers import Chat
from tests.pages import test_browser
from tests.pages.scenes import TALK, open_chat
from tests.pages.test_appearance import context, tab
from tests.pages.test_chat_js import row, running
from tests.pages.test_widget import check_access

__all__ = ["context", "tab"]

pytestmark = [pytest.mark.browser, pytest.mark.long]

kept, server, login = test_browser.kept, test_browser.server, test_browser.login
browser, desk = test_browser.browser, test_browser.desk
long_talk, desk_with_long_talk = test_browser.long_talk, test_browser.desk_with_long_talk

MAX_KEYS = 60
FOCUSED = """() => {
    const node = document.activeElement;
    return node.ariaLabel || node.labels?.[0]?.textContent || node.textContent.trim();
}"""
"""The accessible name of what has the focus."""
BLOCKS = "# A heading\n\nSome words.\n\n"


def press_to(page: Page, name: str, key: str = "Shift+Tab") -> None:
    """Press a key until the control with this name has the focus."""
    for _ in range(MAX_KEYS):
        page.keyboard.press(key)
        if page.evaluate(FOCUSED) == name:
            return
    pytest.fail(f"{key} does not reach {name!r}")


@pytest.mark.firefox
@pytest.mark.django_db(transaction=True)
def test_the_keyboard_reaches_everything(desk):
    chat = desk.open()
    keyboard = chat.page.keyboard
    expect(chat.box).to_be_focused()
    keyboard.type("one")
    keyboard.press("Enter")
    chat.expect_rows("one", "one")
    press_to(chat.page, "Edit")
    keyboard.press("Enter")
    expect(chat.page.get_by_role("textbox", name="Edit message")).to_be_focused()
    keyboard.press("ControlOrMeta+a")
    keyboard.type("count 300")
    keyboard.press("Enter")
    expect(chat.page.locator("[aria-busy] .cm-text")).to_contain_text("2 ")
    expect(chat.box).to_be_focused()
    press_to(chat.page, "Stop", "Tab")
    keyboard.press("Enter")
    expect(chat.page.locator(".cm-interrupted")).to_be_visible()
    expect(chat.box).to_be_focused()
    press_to(chat.page, "Previous version")
    keyboard.press("Enter")
    chat.expect_rows("one", "one")
    press_to(chat.page, "Show the newest version", "Tab")
    keyboard.press("Enter")
    chat.expect_rows("count 300", re.compile("^1 2 "))
    press_to(chat.page, "Skip to the content")
    keyboard.press("Enter")
    press_to(chat.page, "Message", "Tab")


@pytest.mark.django_db(transaction=True)
def test_offline_in_mid_reply_and_back(desk):
    chat = desk.open()
    chat.send(f"slowly {BLOCKS * 20}")
    headings = chat.page.locator(".cm-rich h1")
    expect(headings).not_to_have_count(0)
    desk.context.set_offline(True)
    expect(chat.banner).to_have_text("You are offline. Your messages are kept and sent later.")
    chat.send("later")
    expect(chat.page.locator(".cm-unsent .cm-note")).to_contain_text("Not sent yet")
    desk.context.set_offline(False)
    chat.expect_live()
    expect(chat.banner).to_be_hidden()
    expect(headings).to_have_count(20)
    expect(chat.rows.locator(".cm-text").nth(2)).to_have_text("later")
    expect(chat.rows).to_have_count(4)
    assert [text for role, _, text in desk.messages(chat) if role == "user"][1:] == ["later"]


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_without_javascript_the_newest_messages_are_in_view_and_all_are_reached(
    desk_with_long_talk,
):
    desk = desk_with_long_talk
    desk.context = desk.new_context(java_script_enabled=False)
    page = desk.page()
    page.goto(desk.url("long"))
    chat = Chat(page)
    expect(chat.text("Message 160")).to_be_in_viewport(ratio=1)
    chat.text("Message 111").scroll_into_view_if_needed()
    expect(chat.text("Message 111")).to_be_in_viewport(ratio=1)


def throttle(page: Page, *, latency_ms: int, bytes_per_second: int) -> None:
    """Slow the network of a page down."""
    session = page.context.new_cdp_session(page)
    rates = {"downloadThroughput": bytes_per_second, "uploadThroughput": bytes_per_second}
    session.send("Network.enable")
    conditions = {"offline": False, "latency": latency_ms, **rates}
    session.send("Network.emulateNetworkConditions", conditions)


@pytest.mark.django_db(transaction=True)
def test_over_a_slow_network_the_messages_are_readable_at_once_and_a_reply_is_whole(
    desk_with_long_talk,
):
    desk = desk_with_long_talk
    page = desk.page()
    throttle(page, latency_ms=200, bytes_per_second=60_000)
    delayed: list[Route] = []
    page.route(re.compile(r"/chat\.js"), lambda route: delayed.append(route))
    page.goto(desk.url("long"), wait_until="commit")
    chat = Chat(page)
    expect(chat.text("Message 160")).to_be_in_viewport()
    expect(page.locator("chat-memory:not(:defined)")).to_be_attached()
    delayed[0].continue_()
    chat.expect_live()
    expect(chat.text("Message 160")).to_be_in_viewport()
    chat.send(f"slowly {BLOCKS * 5}")
    expect(page.locator(".cm-row").last.locator("h1")).to_have_count(5)
    expect(page.locator("[aria-busy], .cm-rest")).to_have_count(0)
    expect(page.locator(".cm-row").last).to_be_in_viewport()


WIDTHS = (
    "() => [document.documentElement.scrollWidth, document.querySelector('.cm-lane').clientWidth]"
)


@pytest.mark.parametrize("width", [2560, 1200, 390])
def test_at_any_width_nothing_is_cut_off_and_lines_have_a_readable_length(tab, width):
    tab.set_viewport_size({"width": width, "height": 844})
    open_chat(tab, TALK)
    page_width, line_width = tab.evaluate(WIDTHS)
    assert page_width == width
    assert line_width <= 46 * 16
    expect(Chat(tab).box).to_be_in_viewport(ratio=1)


@pytest.mark.django_db(transaction=True)
def test_on_a_phone_a_message_is_sent_and_stopped_by_touch(desk):
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
    desk.context = desk.new_context(**phone, color_scheme="dark")
    chat = desk.open()
    chat.box.fill("count 300")
    chat.page.get_by_role("button", name="Send").tap()
    expect(chat.page.locator("[aria-busy] .cm-text")).to_contain_text("2 ")
    chat.stop.tap()
    expect(chat.page.locator(".cm-interrupted")).to_be_visible()
    assert chat.page.evaluate("document.documentElement.scrollWidth") == 390
    chat.page.get_by_role("button", name="Chats").tap()
    expect(chat.page.get_by_role("link", name="count 300")).to_be_visible()


STEP = {"turn": "t3", "step": 0}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_rule_of_axe_is_broken_while_a_person_writes_edits_rates_and_waits(tab, scheme):
    tab.emulate_media(color_scheme=scheme)
    server = open_chat(tab, TALK)
    chat = Chat(tab)
    chat.tool(3, "Edit").click()
    expect(tab.get_by_role("textbox", name="Edit message")).to_be_focused()
    check_access(tab)
    tab.keyboard.press("Escape")
    chat.tool(4, "Bad reply").click()
    sent = server.wait_for("feedback")
    server.emit("ok", id=sent["id"], turn="t2", feedback=-1)
    server.emit("message", **row(4, TALK[3], revision=1, role="assistant", turn="t2", feedback=-1))
    server.session(last_seq=4, revision=1)
    expect(tab.get_by_role("textbox", name="What was wrong?")).to_be_focused()
    check_access(tab)
    chat.send("Next")
    expect(tab.locator(".cm-unsent")).to_be_visible()
    server.session(last_seq=4, revision=2, running=running("t3"))
    server.emit("snapshot", **STEP, text="```python\nprint(1)")
    expect(tab.locator(".cm-row[aria-busy] pre")).to_be_visible()
    check_access(tab)
    server.sockets[-1].close(code=1001)
    expect(chat.banner).to_be_visible()
    check_access(tab)
