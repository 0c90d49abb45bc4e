"""The search of messages on the chat page, in a real browser, on a real server."""

from __future__ import annotations

import json
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Locator, Page, Request, Route, expect

from chatmemory import services
from chatmemory.models import Message, Session
from chatmemory.services import Actor
from tests.browsers import Chat
from tests.factories import make_messages, make_user
from tests.pages import test_browser
from tests.pages.test_browser import Desk
from tests.pages.test_widget import check_access

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

kept, server, login = test_browser.kept, test_browser.server, test_browser.login
browser, desk = test_browser.browser, test_browser.desk

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
HIDDEN = "I keep the marmot in the cellar 🦫 — since May; a marmot eats 3 carrots a day."
PARTS = ["marmot", "marmot"]
OLD = 7
"""The seq of the message about the marmot in the long chat."""


@pytest.fixture
def talks(login: str) -> None:
    """A long chat of Ann with an old message, two short ones, and one of another person."""
    ann, bob = Actor.user(User.objects.get(username="ann")), Actor.user(make_user("bob"))
    texts = [f"Message {number}" for number in range(1, 161)]
    texts[OLD - 1] = HIDDEN
    store("long", ann, *texts, title="A long talk")
    store("marmots", ann, "How do they sleep?", "In holes.", title="About marmots")
    store("plain", ann, "Is it a <b>marmot</b>?", "It is.", title="Pets")
    store("foreign", bob, "A marmot of Bob", title="Of Bob")
    for days, key in enumerate(("marmots", "plain", "long")):
        at = timezone.now() - timedelta(days=9 * days)
        Session.objects.filter(key=key).update(last_message_at=at)
    Message.stored.filter(session__key="long").update(created_at=timezone.now() - timedelta(30))


def store(key: str, by: Actor, *texts: str, title: str) -> None:
    services.append_messages(session_key=key, messages=make_messages(*texts), by=by, create=True)
    Session.objects.filter(key=key).update(title=title)


class Side:
    """The list of chats on a page, with its search."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.search = page.get_by_role("searchbox", name="Search chats and messages")
        self.found = page.get_by_role("region", name="Messages")
        self.status = self.found.get_by_role("status")
        self.hits = self.found.get_by_role("link")
        self.older = self.found.get_by_role("button")

    def hit(self, text: str) -> Locator:
        return self.hits.filter(has_text=text)

    def titles(self) -> list[str]:
        return self.page.locator(".cm-chats .cm-title").all_inner_texts()


def search_requests(page: Page) -> list[Request]:
    sent: list[Request] = []
    page.on("request", lambda request: sent.append(request) if "/search/" in request.url else None)
    return sent


def expect_in_place(page: Page, seq: int) -> None:
    """Expect that a message is marked, focused and in view, and stays so."""
    row = page.locator(f"[data-seq='{seq}']")
    expect(row).to_have_attribute("data-found", "")
    expect(row).to_be_focused()
    expect(row).to_be_in_viewport(ratio=1)
    expect(page.locator("[data-found]")).to_have_count(1)


@pytest.fixture
def side(talks: None, desk: Desk) -> Side:
    """The chat `plain`, with the list beside it."""
    return Side(desk.open("plain").page)


def test_the_field_finds_titles_and_below_them_messages(side):
    side.search.press_sequentially("marmot")
    expect(side.status).to_have_text("2 messages found")
    expect(side.hits).to_have_count(2)
    assert side.titles() == ["About marmots"]
    old = side.hit("A long talk")
    expect(old.locator(".cm-snippet")).to_have_text(HIDDEN)
    expect(old.locator("mark")).to_have_text(PARTS)
    expect(old.locator(".cm-about")).to_contain_text("You · ")
    # A snippet is text, never HTML.
    plain = side.hit("Pets")
    expect(plain.locator(".cm-snippet")).to_have_text("Is it a <b>marmot</b>?")
    expect(plain.locator("mark")).to_have_text("marmot")
    expect(side.found.locator("b")).to_have_count(0)
    expect(side.found).not_to_contain_text("Bob")
    check_access(side.page)


def test_the_query_is_sent_once_in_the_body_of_a_post(side):
    sent = search_requests(side.page)
    side.search.press_sequentially("marm", delay=20)
    expect(side.hits).to_have_count(2)
    [request] = sent
    assert request.method == "POST"
    assert urlsplit(request.url).query == ""
    assert json.loads(request.post_data or "")["query"] == "marm"
    side.search.fill("")
    expect(side.found).to_be_hidden()
    assert len(sent) == 1


def test_an_old_message_is_opened_in_its_place(side):
    side.search.fill("cellar")
    side.hit("A long talk").click()
    Chat(side.page).expect_live()
    expect(side.page).to_have_title("A long talk")
    expect_in_place(side.page, OLD)
    expect(side.page.locator(".cm-notice")).to_be_hidden()
    assert parse_qs(urlsplit(side.page.url).query) == {}
    assert urlsplit(side.page.url).path == "/chat/long/"
    # What is sent then is in view.
    Chat(side.page).send("echo a carrot")
    expect(side.page.locator(".cm-row").filter(has_text="echo a carrot").last).to_be_in_viewport()


def test_a_message_of_the_open_chat_is_shown_without_loading_the_page(side):
    side.page.evaluate("document.isSame = true")
    side.search.fill("marmot")
    side.hit("Is it a").click()
    expect_in_place(side.page, 1)
    assert side.page.evaluate("document.isSame")


def test_a_message_far_back_is_shown_by_itself(side):
    by = Actor.user(User.objects.get(username="ann"))
    for number in range(12):
        texts = make_messages(*(f"Line {number}.{each}" for each in range(100)))
        services.append_messages(session_key="long", messages=texts, by=by)
    side.page.goto(f"{side.page.url.removesuffix('plain/')}long/?at={OLD}")
    expect(side.page.locator("body")).to_have_text(HIDDEN)
    assert urlsplit(side.page.url).path == f"/chat/long/{OLD}/"


def test_a_message_that_was_removed_meanwhile_is_reported(side):
    side.search.fill("cellar")
    expect(side.hits).to_have_count(1)
    by = Actor.user(User.objects.get(username="ann"))
    services.trim_session(session_key="long", by=by, keep_last=4, reason="")
    side.hits.click()
    expect(side.page.locator(".cm-notice")).to_contain_text("This message does not exist any more.")


def test_the_keys_go_from_the_titles_to_the_messages_and_back(side):
    keys = side.page.keyboard
    side.search.fill("marmot")
    expect(side.hits).to_have_count(2)
    side.search.focus()
    keys.press("ArrowDown")
    expect(side.page.get_by_role("link", name="About marmots")).to_be_focused()
    keys.press("ArrowDown")
    expect(side.hits.first).to_be_focused()
    keys.press("ArrowDown")
    expect(side.hits.last).to_be_focused()
    keys.press("ArrowUp")
    keys.press("ArrowUp")
    keys.press("ArrowUp")
    expect(side.search).to_be_focused()
    keys.press("Escape")
    expect(side.found).to_be_hidden()
    expect(side.page.locator(".cm-chats .cm-title")).to_have_count(3)
    # Without a title, Enter opens the first message.
    side.search.fill("cellar")
    expect(side.hits).to_have_count(1)
    keys.press("Enter")
    expect_in_place(side.page, OLD)


def answer(*texts: str, partial: bool = False, cursor: str | None = None) -> str:
    hits = [
        {
            "session": "long",
            "title": text,
            "seq": number,
            "role": "assistant",
            "at": "2026-05-04T09:30:00+00:00",
            "snippet": text,
            "ranges": [],
            "score": 1,
        }
        for number, text in enumerate(texts, 1)
    ]
    return json.dumps({"hits": hits, "partial": partial, "cursor": cursor})


def test_older_messages_are_searched_on_request(side):
    bodies: list[dict[str, object]] = []

    def fulfill(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        first = answer(partial=True, cursor="1.2.3")
        route.fulfill(
            body=answer("Old", "Older") if bodies[-1]["cursor"] else first,
            content_type="application/json",
        )

    side.page.route("**/api/search/", fulfill)
    side.search.fill("gnu")
    expect(side.status).to_have_text("No newer message has these words.")
    expect(side.older).to_have_text("Search older messages")
    side.older.press("Enter")
    expect(side.status).to_have_text("2 messages found")
    expect(side.older).to_be_hidden()
    expect(side.hits.first).to_be_focused()
    assert [body["cursor"] for body in bodies] == [None, "1.2.3"]


def test_the_answer_to_an_older_text_is_discarded(side):
    held: list[Route] = []
    side.page.route("**/api/search/", lambda route: held.append(route))
    side.search.fill("first")
    expect(side.page.locator(".cm-found")).to_have_attribute("aria-busy", "true")
    side.search.fill("second")
    with side.page.expect_request("**/api/search/") as second:
        held[0].fulfill(body=answer("First"), content_type="application/json")
    assert json.loads(second.value.post_data or "")["query"] == "second"
    expect(side.hits).to_have_count(0)
    held[1].fulfill(body=answer("Second"), content_type="application/json")
    expect(side.hit("Second")).to_be_visible()
    expect(side.hits).to_have_count(1)


PROBLEMS = {
    "rate_limited": (429, {"retry_after": 11.2}, "Too many searches. Try again in 12 s."),
    "unauthenticated": (401, {}, "You are signed out. Reload the page."),
    "unavailable": (503, {}, "Messages can't be searched now. Try again in a moment."),
    "refused": (403, {"detail": "Confirm first."}, "Confirm first."),
    "internal": (500, {}, "Messages were not searched. Reload the page, and try again."),
}


def test_errors_are_shown_in_words(side, desk):
    def refuse(route: Route) -> None:
        code = json.loads(route.request.post_data or "")["query"]
        status, more, _ = PROBLEMS[code]
        problem = json.dumps({"code": code, **more})
        route.fulfill(status=status, body=problem, content_type="application/problem+json")

    side.page.route("**/api/search/", refuse)
    for code, (_, _, text) in PROBLEMS.items():
        side.search.fill(code)
        expect(side.status).to_have_text(text)
    side.page.unroute("**/api/search/")
    side.page.route("**/api/search/", lambda route: route.abort("connectionrefused"))
    side.search.fill("marmot")
    expect(side.status).to_have_text("No connection, so messages were not searched.")
    assert all("Failed to load resource" in each for each in desk.problems)
    desk.problems.clear()


def test_no_message_is_reported(side):
    side.search.fill("zebra")
    expect(side.status).to_have_text("No message has these words.")
    expect(side.page.get_by_text("No chat has “zebra” in its title.")).to_be_visible()


def test_the_page_of_all_chats_shows_the_messages_of_a_search_that_it_begins_with(talks, desk):
    page = desk.page()
    page.goto(f"{desk.server.address}/chat/~all/?title=cellar")
    side = Side(page)
    expect(side.hits).to_have_count(1)
    check_access(page)
    side.hits.click()
    expect_in_place(page, OLD)


def test_on_a_phone_a_hit_closes_the_drawer(talks, desk):
    desk.context = desk.new_context(**PHONE)
    chat = desk.open("plain")
    side = Side(chat.page)
    chat.page.locator(".cm-drawer-opener").tap()
    side.search.fill("marmot")
    expect(side.hits).to_have_count(2)
    check_access(chat.page)
    side.hit("Is it a").tap()
    expect(chat.page.locator("#cm-aside")).to_be_hidden()
    expect_in_place(chat.page, 1)
