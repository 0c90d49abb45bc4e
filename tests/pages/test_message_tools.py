"""The tools of messages in a real browser: copy, rating, time and fold."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.pages.test_chat_js import (
    SITE,
    ScriptedServer,
    page,
    row,
    running,
    scripted,
    serve,
)
from tests.pages.test_widget import check_access

__all__ = ["page", "scripted"]

pytestmark = [pytest.mark.browser, pytest.mark.slow]

QUESTION = {"turn": "t1", "client_id": "t1"}
REPLY = {"role": "assistant", "turn": "t1"}


@pytest.mark.firefox
def test_a_reply_is_rated_with_a_reason_and_the_rating_is_withdrawn(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", **QUESTION), row(2, "part", **REPLY), row(3, "hello", **REPLY))
    expect(chat.page.get_by_role("button", name="Good reply")).to_have_count(1)  # on its last row
    chat.tool(3, "Bad reply").click()
    sent = script.wait_for("feedback")
    assert (sent["turn"], sent["value"], sent["reason"]) == ("t1", -1, "")
    script.emit("ok", id=sent["id"], turn="t1", feedback=-1)
    script.emit("message", **row(3, "hello", **REPLY, feedback=-1, revision=1))
    reason = chat.page.get_by_role("textbox", name="What was wrong?")
    expect(reason).to_be_focused()
    expect(chat.tool(3, "Bad reply")).to_have_attribute("aria-pressed", "true")
    check_access(chat.page, "chat-memory")

    reason.fill("too short")
    reason.press("Enter")
    sent = script.wait_for("feedback")
    assert (sent["value"], sent["reason"]) == (-1, "too short")
    script.emit("ok", id=sent["id"], turn="t1", feedback=-1)
    expect(reason).to_have_count(0)
    expect(chat.tool(3, "Bad reply")).to_be_focused()

    chat.page.keyboard.press("Enter")
    sent = script.wait_for("feedback")
    assert sent["value"] is None
    script.emit("ok", id=sent["id"], turn="t1", feedback=None)
    script.emit("message", **row(3, "hello", **REPLY, revision=2))
    expect(chat.tool(3, "Bad reply")).to_have_attribute("aria-pressed", "false")
    expect(chat.tool(3, "Bad reply")).to_be_focused()
    expect(reason).to_have_count(0)


@pytest.mark.long
def test_a_double_click_asks_once_for_the_reason(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", **QUESTION), row(2, "hello", **REPLY))
    chat.tool(2, "Good reply").dblclick()
    for _ in range(2):
        sent = script.wait_for("feedback")
        script.emit("ok", id=sent["id"], turn="t1", feedback=sent["value"])
    script.emit("message", **row(2, "hello", **REPLY, feedback=1, revision=1))
    expect(chat.tool(2, "Good reply")).to_have_attribute("aria-pressed", "true")
    reason = chat.page.get_by_role("textbox", name="What was good?")
    expect(reason).to_have_count(1)
    reason.press("Escape")
    expect(reason).to_have_count(0)


@pytest.mark.long
def test_a_refused_rating_is_reported_and_changes_nothing(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", **QUESTION), row(2, "hello", **REPLY))
    chat.tool(2, "Good reply").click()
    script.refuse(script.wait_for("feedback"), "rate_limited")
    notice = chat.page.get_by_text("Your rating was not saved. Try again.")
    expect(notice).to_be_visible()
    expect(chat.tool(2, "Good reply")).to_have_attribute("aria-pressed", "false")
    chat.tool(2, "Good reply").click()
    expect(notice).to_have_count(0)


@pytest.mark.long
def test_a_reason_that_is_not_saved_can_be_sent_again(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", **QUESTION), row(2, "hello", **REPLY))
    chat.tool(2, "Good reply").click()
    script.emit("ok", id=script.wait_for("feedback")["id"], turn="t1", feedback=1)
    reason = chat.page.get_by_role("textbox", name="What was good?")
    reason.fill("short")
    reason.press("Enter")
    script.refuse(script.wait_for("feedback"), "rate_limited")
    notice = chat.page.get_by_text("Your rating was not saved. Try again.")
    expect(notice).to_be_visible()
    expect(reason).to_have_value("short")
    reason.press("Enter")
    sent = script.wait_for("feedback")
    assert (sent["value"], sent["reason"]) == (1, "short")
    script.emit("ok", id=sent["id"], turn="t1", feedback=1)
    expect(reason).to_have_count(0)
    expect(notice).to_have_count(0)


@pytest.mark.long
def test_a_running_reply_and_messages_without_a_turn_are_not_rated(scripted):
    script, chat = scripted
    script.welcome(
        row(1, "imported", role="assistant"),
        row(2, "hi", **QUESTION),
        row(3, "step", **REPLY),
        running=running("t1"),
    )
    expect(chat.tool(3, "Copy")).to_be_attached()
    expect(chat.page.get_by_role("button", name="Good reply")).to_have_count(0)


def test_each_tool_is_an_icon_with_a_name_and_a_tooltip(scripted):
    script, chat = scripted
    failed = {"turn": "t2", "status": "failed", "error": "model_timeout"}
    rows = [row(1, "hi", **QUESTION), row(2, "hello", **REPLY)]
    script.welcome(*rows, row(3, "again"), row(4, "part", role="assistant", **failed))
    names = {1: ["Copy", "Edit"], 2: ["Copy", "Good reply", "Bad reply"], 4: ["Copy", "Try again"]}
    for seq, expected in names.items():
        tools = chat.page.locator(f"[data-seq='{seq}'] .cm-tools button")
        expect(tools).to_have_count(len(expected))
        for tool, name in zip(tools.all(), expected, strict=True):
            expect(tool).to_have_accessible_name(name)
            expect(tool).to_have_attribute("title", name)
            expect(tool).to_have_text("")
            expect(tool.locator("svg")).to_have_count(1)


def test_the_tools_of_older_messages_appear_under_the_pointer_and_with_the_focus(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", **QUESTION), row(2, "hello", **REPLY))
    times = [chat.page.locator(f"[data-seq='{seq}'] time") for seq in (1, 2)]
    chat.page.mouse.move(0, 0)
    opacities = [chat.tool(1, "Copy"), times[0], chat.tool(2, "Copy"), times[1]]
    for node, opacity in zip(opacities, ("0", "0", "1", "0"), strict=True):
        expect(node).to_have_css("opacity", opacity)
    chat.tool(1, "Copy").focus()
    chat.page.locator("[data-seq='2']").hover()
    for node in opacities:
        expect(node).to_have_css("opacity", "1")


def test_on_a_touch_screen_the_tools_and_times_are_always_shown(launch, chromium):
    touch = {"is_mobile": True, "has_touch": True, "viewport": {"width": 390, "height": 800}}
    with launch(chromium).new_context(**touch) as context:
        context.route(f"{SITE}/**", serve)
        script = ScriptedServer(tab := context.new_page())
        tab.goto(SITE)
        script.welcome(row(1, "hi", **QUESTION), row(2, "hello", **REPLY))
        for name in ("button", "time"):
            expect(tab.locator(f"[data-seq='1'] .cm-tools {name}").first).to_have_css(
                "opacity", "1"
            )


def test_the_source_of_a_message_is_copied(scripted):
    script, chat = scripted
    script.welcome(
        row(1, "hi"), row(2, "**bold** text", role="assistant"), row(3, "a part", cut=True)
    )
    expect(chat.tool(3, "Copy")).to_have_count(0)
    chat.tool(2, "Copy").click()  # this page is not loaded over HTTPS
    expect(chat.tool(2, "Copied")).to_be_visible()
    chat.box.press("ControlOrMeta+v")
    expect(chat.box).to_have_value("**bold** text")


def test_a_message_has_its_time_in_the_zone_and_language_of_the_user(launch, chromium):
    with launch(chromium).new_context(timezone_id="Asia/Tokyo", locale="de-DE") as context:
        context.route(f"{SITE}/**", serve)
        script = ScriptedServer(tab := context.new_page())
        tab.goto(SITE)
        script.welcome(row(1, "hi", created_at="2025-01-01T06:30:00Z"))
        time = tab.locator("[data-seq='1'] time")
        expect(time).to_have_text("01.01.2025, 15:30")
        expect(time).to_have_attribute("datetime", "2025-01-01T06:30:00Z")


@pytest.mark.firefox
@pytest.mark.parametrize(
    "text", ["word " * 400, pytest.param("line\n" * 30, marks=pytest.mark.long)]
)
def test_a_long_message_of_the_user_is_folded(scripted, text):
    script, chat = scripted
    script.welcome(row(1, text.strip()), row(2, text, role="assistant"), row(3, "short"))
    box = chat.page.locator("[data-seq='1'] .cm-text")
    assert box.bounding_box()["height"] < 300
    toggle = chat.page.get_by_role("button", name="Show all")
    expect(toggle).to_have_count(1)
    toggle.click()
    assert box.bounding_box()["height"] > 300
    expect(chat.page.get_by_role("button", name="Show less")).to_have_attribute(
        "aria-expanded", "true"
    )


def test_a_failed_reply_can_be_tried_again(scripted):
    script, chat = scripted
    failed = {"status": "failed", "error": "model_rate_limited"}
    script.welcome(row(1, "hi", **QUESTION), row(2, "", **REPLY, **failed))
    expect(chat.page.get_by_text("The model received too many requests.")).to_be_visible()
    chat.tool(2, "Try again").click()
    assert script.wait_for("send")["replaces"] == 1


@pytest.mark.long
def test_a_reply_whose_input_was_too_long_is_not_tried_again(scripted):
    script, chat = scripted
    failed = {"status": "failed", "error": "context_too_long"}
    script.welcome(row(1, "hi", **QUESTION), row(2, "", **REPLY, **failed))
    expect(chat.page.get_by_text("Shorten your message, or start a new chat.")).to_be_visible()
    expect(chat.tool(1, "Edit")).to_be_attached()
    expect(chat.tool(2, "Try again")).to_have_count(0)
