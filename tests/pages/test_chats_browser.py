"""The list of chats in a real browser, on a real server."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Locator, Page, Route, expect

from chatmemory import services
from chatmemory.models import Session
from chatmemory.services import Actor
from tests.browsers import Chat, open_account
from tests.factories import make_messages
from tests.pages import test_browser
from tests.pages.test_browser import Desk
from tests.pages.test_widget import check_access

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

kept, server, login = test_browser.kept, test_browser.server, test_browser.login
browser, desk = test_browser.browser, test_browser.desk

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
TITLES = ("Apples", "Bread", "", "Dough", "Eggs")


@pytest.fixture
def chats(login: str) -> None:
    """Chats of Ann, from today on backwards; the third has no title."""
    by = Actor.user(User.objects.get(username="ann"))
    for number, title in enumerate(TITLES):
        key = f"c{number}"
        texts = make_messages(f"Question {number}", "An answer")
        services.append_messages(session_key=key, messages=texts, by=by, create=True)
        at = timezone.now() - timedelta(days=3 * number)
        Session.objects.filter(key=key).update(title=title, last_message_at=at)
    Session.objects.filter(key="c4").update(held_at=timezone.now())


@pytest.fixture
def more_chats(chats: None) -> None:
    """100 more chats of Ann."""
    scope = services.user_scope(User.objects.get(username="ann"))
    now = timezone.now()
    Session.objects.bulk_create(
        Session(
            scope=scope,
            key=f"m{number}",
            title=f"Chat {number}",
            last_seq=1,
            last_message_at=now - timedelta(days=20, minutes=number),
        )
        for number in range(100)
    )


@pytest.fixture
def side(chats: None, desk: Desk) -> Side:
    """The chat `c0`, with the list beside it."""
    return Side(desk.open("c0").page)


class Side:
    """The list of chats on a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.search = page.get_by_role("searchbox")
        self.notice = page.locator(".cm-notice")
        self.menu = page.get_by_role("menu")

    def row(self, key: str) -> Locator:
        return self.page.locator(f"li[data-key='{key}']")

    def open_menu(self, key: str) -> None:
        self.row(key).get_by_role("button").click()
        expect(self.menu).to_be_visible()

    def choose(self, key: str, name: str) -> None:
        self.open_menu(key)
        self.menu.get_by_role("menuitem", name=name, exact=True).click()

    def rename_box(self, key: str) -> Locator:
        return self.row(key).get_by_role("textbox", name="Title")

    def expect_titles(self, *titles: str) -> None:
        shown = self.page.locator(".cm-chats .cm-title").filter(visible=True)
        expect(shown).to_have_text(list(titles))

    def expect_groups(self, *names: str) -> None:
        expect(self.page.locator(".cm-chats h2")).to_have_text(list(names))


ALL = ("Apples", "Bread", "Question 2", "Dough", "Eggs")


def path_of(page: Page) -> str:
    return urlsplit(page.url).path


@pytest.mark.long
def test_without_its_module_the_menu_is_a_page_and_the_list_stays(side):
    page = side.page
    page.route("**/list/*.js", lambda route: route.abort("connectionrefused"))
    page.evaluate("dispatchEvent(new Event('focus'))")
    side.row("c1").get_by_role("button").click()
    expect(page.get_by_role("heading", name="Bread")).to_be_visible()
    assert path_of(page) == "/chat/c1/options/"


def test_a_chat_is_renamed_pinned_archived_and_deleted_by_keyboard(side):
    page, keys = side.page, side.page.keyboard
    side.expect_titles(*ALL)
    page.get_by_role("link", name="Bread").focus()
    keys.press("Tab")
    expect(page.get_by_role("button", name="Options for “Bread”")).to_be_focused()
    keys.press("Enter")
    expect(side.menu.get_by_role("menuitem", name="Rename")).to_be_focused()
    expect(side.row("c1").get_by_role("button")).to_have_attribute("aria-expanded", "true")
    check_access(page, ".cm-menu")
    keys.press("Escape")
    expect(side.menu).to_be_hidden()
    expect(side.row("c1").get_by_role("button")).to_be_focused()

    keys.press("Enter")
    keys.press("Enter")
    expect(side.rename_box("c1")).to_be_focused()
    keys.type("Butter")
    keys.press("Enter")
    side.expect_titles("Apples", "Butter", *ALL[2:])
    expect(side.row("c1").get_by_role("button")).to_be_focused()

    keys.press("Enter")
    keys.press("ArrowDown")
    keys.press("Enter")
    side.expect_groups("Pinned", "Today", "Previous 7 days", "Previous 30 days")
    side.expect_titles("Butter", "Apples", *ALL[2:])
    expect(side.row("c1").get_by_role("button")).to_be_focused()

    keys.press("Enter")
    keys.press("End")
    keys.press("ArrowUp")
    expect(side.menu.get_by_role("menuitem", name="Archive")).to_be_focused()
    keys.press("Enter")
    side.expect_titles("Apples", *ALL[2:])
    expect(side.notice).to_contain_text("Chat archived.")

    page.get_by_role("link", name="Dough").focus()
    keys.press("Tab")
    keys.press("Enter")
    keys.press("ArrowUp")
    expect(side.menu.get_by_role("menuitem", name="Delete")).to_be_focused()
    keys.press("Enter")
    side.expect_titles("Apples", "Question 2", "Eggs")
    expect(side.notice).to_contain_text("Chat deleted.")
    expect(side.row("c4").get_by_role("button")).to_be_focused()
    side.notice.get_by_role("button", name="Undo").press("Enter")
    side.expect_titles("Apples", "Question 2", "Dough", "Eggs")
    expect(side.notice).to_be_hidden()


@pytest.mark.regression
def test_a_menu_that_is_loaded_opens_before_the_next_key(side):
    button = side.row("c1").get_by_role("button")
    button.press("Enter")
    expect(side.menu.get_by_role("menuitem", name="Rename")).to_be_focused()
    side.page.keyboard.press("Escape")
    focused = "button => {button.click(); return document.activeElement.dataset.action}"
    assert button.evaluate(focused) == "rename"


@pytest.mark.regression
def test_the_list_changes_on_a_page_that_requires_trusted_types(chats, desk):
    def require(route: Route) -> None:
        answer = route.fetch()
        policy = f"{answer.headers['content-security-policy']}; require-trusted-types-for 'script'"
        route.fulfill(
            response=answer, headers={**answer.headers, "content-security-policy": policy}
        )

    desk.context.route("**/chat/c0/", require)
    side = Side(desk.open("c0").page)
    side.choose("c1", "Pin")
    side.expect_groups("Pinned", "Today", "Previous 7 days", "Previous 30 days")
    side.choose("c1", "Rename")
    side.rename_box("c1").fill("Butter")
    side.rename_box("c1").press("Enter")
    side.expect_titles("Butter", "Apples", *ALL[2:])


@pytest.mark.long
def test_a_rename_can_be_cancelled_and_an_empty_title_shows_the_first_words(side):
    side.choose("c1", "Rename")
    box = side.rename_box("c1")
    expect(box).to_have_value("Bread")
    box.fill("Butter")
    box.press("Escape")
    side.expect_titles(*ALL)
    side.choose("c1", "Rename")
    box.fill(" ")
    box.press("Enter")
    side.expect_titles("Apples", "Question 1", *ALL[2:])
    side.choose("c2", "Rename")
    expect(side.rename_box("c2")).to_have_value("")
    expect(side.rename_box("c2")).to_have_attribute("placeholder", "Question 2")
    side.rename_box("c2").fill("Cheese")
    side.search.focus()  # a click elsewhere saves too
    side.expect_titles("Apples", "Question 1", "Cheese", *ALL[3:])


def test_a_refused_change_is_explained_and_loses_nothing(desk, side):
    side.choose("c4", "Delete")
    expect(side.notice).to_contain_text("This chat is on hold")
    expect(side.notice.get_by_role("button", name="Undo")).to_be_hidden()
    side.notice.get_by_role("link", name="Dismiss").click()
    expect(side.notice).to_be_hidden()
    side.choose("c4", "Rename")
    side.rename_box("c4").fill("Kept")
    side.rename_box("c4").press("Enter")
    expect(side.notice).to_contain_text("This chat is on hold")
    expect(side.rename_box("c4")).to_have_value("Kept")
    side.rename_box("c4").press("Escape")
    side.expect_titles(*ALL)
    desk.problems.clear()  # the browser reports each 409


@pytest.mark.long
def test_a_rename_without_a_connection_can_be_repeated(desk, side):
    side.choose("c1", "Rename")
    box = side.rename_box("c1")
    box.fill("Butter")
    desk.context.set_offline(True)
    box.press("Enter")
    expect(side.notice).to_contain_text("No connection.")
    expect(box).to_have_value("Butter")
    expect(box).to_be_focused()
    desk.context.set_offline(False)
    box.press("Enter")
    side.expect_titles("Apples", "Butter", *ALL[2:])
    desk.problems.clear()


@pytest.mark.long
def test_a_sign_out_elsewhere_is_stated(desk, side):
    other = desk.page()
    other.goto(f"{desk.server.address}/chat/~all/")
    open_account(other).get_by_role("button", name="Sign out").click()
    expect(other).to_have_url(f"{desk.server.address}/")
    side.choose("c1", "Pin")
    expect(side.notice).to_contain_text("You are signed out.")
    side.expect_titles(*ALL)
    desk.problems.clear()


def test_the_deletion_of_the_open_chat_can_be_undone_in_the_next_chat(desk, side):
    side.choose("c0", "Delete")
    expect(side.page).to_have_url(re.compile(r"/chat/[0-9a-f-]{36}/\?undo=\d+$"))
    expect(side.notice).to_contain_text("Chat deleted.")
    side.expect_titles(*ALL[1:])
    side.notice.get_by_role("button", name="Undo").click()
    expect(side.page).to_have_url(desk.url("c0"))
    side.expect_titles(*ALL)


def test_a_new_chat_is_stored_and_listed_with_its_first_message(desk, side):
    page = side.page
    page.get_by_role("link", name="New chat").first.click()
    chat = Chat(page)
    expect(chat.box).to_be_focused()
    expect(page.locator("chat-memory[data-state=idle]")).to_be_attached()
    key = path_of(page).split("/")[-2]
    page.reload()
    expect(page.locator("chat-memory[data-state=idle]")).to_be_attached()
    assert desk.fetch(f"{key}/").status == 404
    expect(page.locator(".cm-open")).to_have_text(re.compile("New chat"))
    expect(page.get_by_role("button", name="Options for this chat")).to_be_hidden()
    chat.send("First words")
    side.expect_titles("First words", *ALL)
    assert desk.fetch(f"{key}/").json()["last_seq"] >= 1
    expect(side.row(key).locator("a")).to_have_attribute("aria-current", "page")
    expect(page.locator(".cm-open li")).to_have_count(0)
    page.get_by_role("button", name="Options for this chat").click()
    side.menu.get_by_role("menuitem", name="Rename").click()
    heading = page.locator(".cm-heading")
    heading.get_by_role("textbox").fill("A heading")
    heading.get_by_role("textbox").press("Enter")
    side.expect_titles("A heading", *ALL)
    expect(page.get_by_role("heading", level=1)).to_have_text("A heading")
    expect(page).to_have_title("A heading")


def test_other_tabs_follow_each_change(desk, side):
    page = desk.page()
    page.goto(f"{desk.server.address}/chat/~all/")
    other = Side(page)
    other.expect_titles(*ALL)
    side.choose("c1", "Rename")
    side.rename_box("c1").fill("Butter")
    side.rename_box("c1").press("Enter")
    other.expect_titles("Apples", "Butter", *ALL[2:])
    other.choose("c3", "Delete")
    side.expect_titles("Apples", "Butter", "Question 2", "Eggs")
    other.notice.get_by_role("button", name="Undo").click()
    side.expect_titles("Apples", "Butter", *ALL[2:])
    chat = Chat(side.page)
    chat.send("count 3")
    expect(chat.text(re.compile("^1 2 3 ?$"))).to_be_visible()
    expect(other.row("c0")).to_have_attribute("data-last", "4")
    other.choose("c0", "Archive")
    expect(chat.banner).to_contain_text("This chat is archived.")
    side.expect_titles("Butter", *ALL[2:])
    side.choose("c0", "Unarchive")
    other.expect_titles("Apples", "Butter", *ALL[2:])
    expect(chat.banner).to_be_hidden()


@pytest.mark.long
def test_an_update_that_fails_does_not_end_the_updates(desk, side):
    page = side.page

    def answer(route: Route) -> None:
        route.fulfill(body="<li data-key='c1'></li>", content_type="text/html")

    page.route("**/chat/~all/?*part=*", answer)  # as a template of the host without groups
    with page.expect_event("pageerror"):
        page.evaluate("dispatchEvent(new Event('focus'))")
    page.unroute("**/chat/~all/?*part=*")
    desk.problems.clear()
    page.evaluate("dispatchEvent(new Event('focus'))")
    side.choose("c1", "Pin")
    side.expect_groups("Pinned", "Today", "Previous 7 days", "Previous 30 days")


def test_running_and_unread_replies_are_marked(desk, side):
    chat = Chat(side.page)
    chat.send("count 60")
    expect(side.page.locator("[aria-busy] .cm-text")).to_contain_text("2 ")
    expect(side.row("c0").get_by_text("Reply in progress")).to_be_attached()
    side.page.goto(desk.url("c1"))
    expect(side.row("c0").get_by_text("Reply in progress")).to_be_attached()
    expect(side.row("c0").locator(".cm-unread")).to_be_hidden()
    # With the focus the page requests the list again.
    side.page.evaluate("setInterval(() => dispatchEvent(new Event('focus')), 300)")
    expect(side.row("c0").locator(".cm-running")).to_have_count(0)
    expect(side.row("c0").get_by_text("Unread")).to_be_visible()
    expect(side.page.locator(".cm-unread").filter(visible=True)).to_have_count(1)
    check_access(side.page)
    other = Side(desk.open("c0").page)
    expect(other.row("c0").locator(".cm-unread")).to_be_hidden()
    expect(side.row("c0").locator(".cm-unread")).to_be_hidden()  # by the storage event


@pytest.mark.long
def test_what_this_browser_has_shown_is_bounded_and_kept_for_each_person(desk, side):
    page = side.page
    person = page.locator(".cm-chats").get_attribute("data-person")
    key = f"chatmemory:seen:{person}"
    stored = "key => JSON.parse(localStorage.getItem(key))"
    assert page.evaluate(stored, key) == [["c0", 2]]
    page.evaluate(
        """key => {
            const seen = [...Array(600).keys()].map((number) => [`x${number}`, 1]);
            localStorage.setItem(key, JSON.stringify(seen));
        }""",
        key,
    )
    page.goto(desk.url("c1"))
    seen = page.evaluate(stored, key)
    assert (len(seen), seen[-1]) == (500, ["c1", 2])
    page.evaluate("key => localStorage.setItem(key, '{')", key)
    page.goto(desk.url("c2"))
    assert page.evaluate(stored, key)[-1] == ["c2", 2]


def test_chats_are_searched_by_keyboard(side):
    page, keys = side.page, side.page.keyboard
    Chat(page).box.focus()
    keys.press("Control+k")
    expect(side.search).to_be_focused()
    keys.type("e")
    side.expect_titles("Apples", "Bread", "Question 2", "Eggs")
    keys.type("gg")
    side.expect_titles("Eggs")
    keys.press("Escape")
    side.expect_titles(*ALL)
    expect(side.search).to_be_focused()
    keys.type("QUESTION")
    side.expect_titles("Question 2")
    keys.press("Escape")
    keys.type("no such chat")
    expect(page.locator(".cm-chats")).to_have_text("No chat has “no such chat” in its title.")
    check_access(page)
    keys.press("Escape")
    side.expect_titles(*ALL)
    keys.press("ArrowDown")
    keys.press("ArrowDown")
    expect(page.get_by_role("link", name="Bread")).to_be_focused()
    keys.press("ArrowUp")
    keys.press("ArrowUp")
    expect(side.search).to_be_focused()
    keys.type("dou")
    side.expect_titles("Dough")
    keys.press("Enter")
    expect(page).to_have_url(re.compile("/chat/c3/$"))


@pytest.mark.long
def test_an_open_dialog_keeps_the_focus(side):
    side.page.locator(".cm-heading").click()
    side.page.keyboard.press("?")
    expect(side.page.get_by_role("dialog")).to_be_visible()
    side.page.keyboard.press("Control+k")
    expect(side.search).not_to_be_focused()
    side.page.keyboard.press("Escape")
    expect(side.page.get_by_role("dialog")).to_be_hidden()
    side.page.keyboard.press("Control+k")
    expect(side.search).to_be_focused()


@pytest.fixture
def long_side(more_chats: None, side: Side) -> Side:
    """The chat `c0`, beside a list of three pages."""
    return side


@pytest.mark.long
def test_more_chats_are_loaded_and_kept_by_an_update(desk, long_side):
    side, page = long_side, long_side.page
    rows = page.locator(".cm-chats li")
    expect(rows).to_have_count(40)
    page.get_by_role("link", name="More chats").press("Enter")
    expect(rows).to_have_count(80)
    expect(rows.nth(40).locator("a")).to_be_focused()
    page.get_by_role("link", name="More chats").click()
    expect(rows).to_have_count(105)
    expect(page.get_by_role("link", name="More chats")).to_have_count(0)
    row = side.row("m80")
    row.locator("a").focus()
    top = row.bounding_box()["y"]
    rename(desk, "m2", "Renamed")
    expect(side.row("m2")).to_contain_text("Renamed")
    expect(rows).to_have_count(105)
    expect(row.locator("a")).to_be_focused()
    assert row.bounding_box()["y"] == top
    assert (
        side.page.locator(".cm-chats li").evaluate_all(
            "rows => new Set(rows.map(row => row.dataset.key)).size"
        )
        == 105
    )


@pytest.mark.long
def test_an_update_waits_for_an_open_menu_and_a_rename(desk, side):
    side.open_menu("c1")
    rename(desk, "c2", "Cheese")
    side.page.wait_for_timeout(600)  # as long as an update would take
    side.expect_titles(*ALL)
    side.menu.get_by_role("menuitem", name="Rename").click()
    side.rename_box("c1").fill("Butt")
    rename(desk, "c3", "Dates")
    side.page.wait_for_timeout(600)
    expect(side.rename_box("c1")).to_be_focused()
    side.page.keyboard.type("er")
    side.page.keyboard.press("Enter")
    side.expect_titles("Apples", "Butter", "Cheese", "Dates", "Eggs")


def rename(desk: Desk, key: str, title: str) -> None:
    """Rename a chat in another tab."""
    page = desk.page()
    page.goto(f"{desk.server.address}/chat/~all/?title=none")
    page.evaluate(
        """async ([key, title]) => {
            const body = new FormData(document.getElementById("cm-action"));
            body.set("title", title);
            await fetch(`../${key}/rename/`, {method: "POST", body});
            document.dispatchEvent(new Event("chatmemory:changed"));
        }""",
        [key, title],
    )
    page.close()


@pytest.mark.long
def test_the_menu_closes_by_its_button_and_when_its_list_scrolls(long_side):
    side = long_side
    button = side.row("c1").get_by_role("button")
    side.open_menu("c1")
    button.click()
    expect(side.menu).to_be_hidden()
    expect(button).to_have_attribute("aria-expanded", "false")
    button.press("Enter")
    expect(side.menu).to_be_visible()
    side.page.keyboard.press("Escape")
    side.open_menu("c1")
    side.page.locator(".cm-log").evaluate("log => log.dispatchEvent(new Event('scroll'))")
    expect(side.menu).to_be_visible()
    side.page.locator(".cm-scroll").evaluate("list => { list.scrollTop = 50; }")
    expect(side.menu).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_the_pages_are_accessible_and_fit_on_a_phone(chats, desk, scheme):
    desk.context = desk.new_context(**PHONE, color_scheme=scheme)
    page = desk.page()
    side = Side(page)

    def check(within: str = "html") -> None:
        check_access(page, within)
        assert page.evaluate("document.documentElement.scrollWidth") == 390

    page.goto(desk.url("c1"))
    Chat(page).expect_live()
    page.get_by_role("button", name="Options for this chat").tap()
    expect(side.menu).to_be_visible()
    check()
    side.menu.get_by_role("menuitem", name="Delete").tap()
    expect(side.notice).to_contain_text("Chat deleted.")
    expect(page.locator("chat-memory[data-state=idle]")).to_be_attached()
    check()
    page.keyboard.press("Control+k")
    expect(side.search).to_be_focused()
    side.expect_titles("Apples", *ALL[2:])
    check(".cm-aside")  # what is behind it is inert
    page.goto(f"{desk.server.address}/chat/~all/")
    side.expect_titles("Apples", *ALL[2:])
    side.choose("c3", "Rename")
    expect(side.rename_box("c3")).to_be_focused()
    check()
    side.rename_box("c3").press("Escape")
    for name in ("Archived", "Deleted", "Your data"):
        page.get_by_role("link", name=name).tap()
        expect(page.get_by_role("navigation").get_by_role("link", name=name)).to_have_attribute(
            "aria-current", "page"
        )
        check()
    page.goto(f"{desk.url('c3')}options/")
    check()


def test_a_text_that_was_written_before_the_search_was_loaded_is_searched(chats, desk):
    page = desk.page()
    side = Side(page)
    delayed: list[Route] = []
    page.route("**/list/search*.js", lambda route: delayed.append(route))
    page.goto(f"{desk.server.address}/chat/~all/")
    side.search.fill("egg")
    page.wait_for_timeout(400)
    side.expect_titles(*ALL)
    delayed[0].continue_()
    side.expect_titles("Eggs")


def test_on_a_page_of_its_own_no_time_moves_under_the_pointer_and_a_notice_has_its_place(
    chats, desk
):
    page = desk.page()
    side = Side(page)
    page.goto(f"{desk.server.address}/chat/~all/")
    time = side.row("c1").locator("time")
    page.mouse.move(0, 0)
    before = time.bounding_box()
    side.row("c1").hover()
    assert time.bounding_box() == before
    side.choose("c1", "Delete")
    expect(side.notice).to_be_visible()
    notice, below = side.notice.bounding_box(), page.locator(".cm-begin").bounding_box()
    assert notice
    assert below
    assert below["y"] - (notice["y"] + notice["height"]) > 10


def test_a_phone_shows_until_when_a_chat_can_be_restored(chats, desk):
    desk.context = desk.new_context(viewport={"width": 390, "height": 844})
    page = desk.page()
    page.goto(f"{desk.server.address}/chat/~all/")
    Side(page).choose("c1", "Delete")
    expect(Side(page).notice).to_be_visible()
    page.goto(f"{desk.server.address}/chat/~deleted/")
    expect(page.locator(".cm-until time")).to_be_visible()


def test_without_javascript_forms_do_the_same(chats, desk):
    desk.context = desk.new_context(java_script_enabled=False)
    page = desk.page()
    side = Side(page)
    page.goto(f"{desk.server.address}/chat/~all/")
    side.row("c1").get_by_role("button").click()
    page.get_by_label("Title").fill("Butter")
    page.get_by_role("button", name="Rename").click()
    side.expect_titles("Apples", "Butter", *ALL[2:])
    side.row("c3").get_by_role("button").click()
    page.get_by_role("button", name="Delete").click()
    side.expect_titles("Apples", "Butter", "Question 2", "Eggs")
    page.get_by_role("button", name="Undo").click()
    assert path_of(page) == "/chat/c3/"
    page.goto(f"{desk.server.address}/chat/~all/")
    side.search.fill("egg")
    side.search.press("Enter")
    side.expect_titles("Eggs")
    page.get_by_role("link", name="Your data").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export as JSON").click()
    assert download.value.suggested_filename == "chats.json"
