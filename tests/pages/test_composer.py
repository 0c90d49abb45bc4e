"""The text box in a real browser: drafts, and the keys beside Enter."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browsers import open_account
from tests.pages.scenes import open_chat
from tests.pages.test_chat_js import SITE, page, row, running, scripted
from tests.pages.test_widget import check_access

__all__ = ["page", "scripted"]

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.firefox
def test_a_draft_survives_a_reload_until_it_is_sent(scripted):
    script, chat = scripted
    script.welcome()
    chat.box.press_sequentially("half a thought")
    chat.page.reload()
    script.welcome()
    expect(chat.box).to_have_value("half a thought")
    chat.box.press("Enter")
    script.accept(script.wait_for("send"), seq=1)
    chat.page.reload()
    script.welcome(row(1, "half a thought"))
    expect(chat.box).to_have_value("")


def test_each_tab_has_its_own_draft(scripted):
    script, chat = scripted
    script.welcome()
    chat.box.press_sequentially("one")
    other = chat.page.context.new_page()
    other.goto(SITE)
    box = other.get_by_role("textbox", name="Message")
    expect(box).to_have_value("")
    box.press_sequentially("two")
    chat.page.reload()
    expect(chat.box).to_have_value("one")


@pytest.mark.long
def test_without_storage_a_text_is_only_lost_at_the_reload(scripted):
    script, chat = scripted
    chat.page.add_init_script("Storage.prototype.setItem = () => { throw Error('full'); }")
    chat.page.reload()
    script.welcome()
    chat.send("kept by the page")
    assert script.wait_for("send")["text"] == "kept by the page"


@pytest.mark.firefox
def test_escape_stops_the_reply_and_keeps_the_draft(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", turn="t1", client_id="t1"), running=running("t1"))
    chat.box.press_sequentially("next")
    chat.box.press("Escape")
    assert script.wait_for("stop")["turn"] == "t1"
    expect(chat.box).to_have_value("next")


@pytest.mark.long
def test_escape_stops_nothing_while_a_text_is_composed_or_nothing_runs(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", turn="t1", client_id="t1"), running=running("t1"))
    chat.box.press_sequentially("ni")
    chat.box.dispatch_event("keydown", {"key": "Escape", "isComposing": True})
    script.session(last_seq=1)
    expect(chat.stop).to_be_hidden()
    chat.box.press("Escape")
    chat.send("not stopped")
    script.wait_for("send")
    assert [frame for frame in script.skipped if frame["type"] == "stop"] == []


def test_the_enter_that_ends_a_composition_sends_nothing(scripted):
    """Safari reports it after the composition, with the `keyCode` of a composed key."""
    script, chat = scripted
    script.welcome()
    chat.box.press_sequentially("ni")
    chat.box.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    chat.box.dispatch_event("keydown", {"key": "Enter", "keyCode": 229})
    expect(chat.box).to_have_value("ni")
    chat.box.press("Enter")
    assert script.wait_for("send")["text"] == "ni"


@pytest.mark.firefox
def test_arrow_up_in_an_empty_box_edits_the_last_own_message(scripted):
    script, chat = scripted
    first = row(1, "one", turn="t1", client_id="t1")
    second = row(3, "two", turn="t2", client_id="t2")
    answers = [row(n, "ok", role="assistant", turn=f"t{n // 2}") for n in (2, 4)]
    script.welcome(first, answers[0], second, answers[1])
    chat.expect_rows("one", "ok", "two", "ok")
    chat.box.press_sequentially("a")
    chat.box.press("ArrowUp")
    expect(chat.page.get_by_role("textbox", name="Edit message")).to_have_count(0)
    chat.box.fill("")
    chat.box.press("ArrowUp")
    expect(chat.page.get_by_role("textbox", name="Edit message")).to_have_value("two")
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("textbox", name="Edit message")).to_have_count(0)


@pytest.mark.long
def test_arrow_up_without_a_message_changes_nothing(scripted):
    script, chat = scripted
    script.welcome()
    chat.box.press("ArrowUp")
    chat.send("hi")
    assert script.wait_for("send")["text"] == "hi"


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_a_question_mark_outside_of_a_text_box_lists_the_keys(scripted, scheme):
    script, chat = scripted
    chat.page.emulate_media(color_scheme=scheme)
    script.welcome()
    chat.box.press("?")
    expect(chat.box).to_have_value("?")
    dialog = chat.page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_have_count(0)
    chat.page.locator(".cm-log").press("?")
    expect(dialog).to_be_visible()
    check_access(chat.page)
    chat.page.keyboard.press("?")
    expect(dialog).to_have_count(1)
    chat.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(chat.page.locator(".cm-log")).to_be_focused()


KEPT = """() => [...Object.keys(sessionStorage), ...Object.keys(localStorage)]
    .filter((name) => name.includes("of-ann") || name.endsWith(":scheme"))"""


def test_drafts_and_read_positions_are_removed_when_the_person_signs_out(page):
    open_chat(page)
    page.evaluate(
        """() => {
          addEventListener("pagehide", () => localStorage.setItem("chatmemory:late:of-ann", "2"));
          sessionStorage.setItem("chatmemory:draft:of-ann", "a secret");
          localStorage.setItem("chatmemory:seen:of-ann", "[]");
          localStorage.setItem("chatmemory:scheme", "dark");
          localStorage.setItem("host:of-ann", "1");
        }"""
    )
    with page.expect_navigation():
        open_account(page).get_by_role("button", name="Sign out").click()
    assert sorted(page.evaluate(KEPT)) == ["chatmemory:scheme", "host:of-ann"]
