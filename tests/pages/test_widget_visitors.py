"""Visitors in the widget: in the demo's shop and on another site, on a real server."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

import chatmemory
from chatmemory import services
from chatmemory.access.visitors import LOCAL_COOKIE
from chatmemory.api.visitors import NEEDS_HTTPS
from chatmemory.models import DatabaseNow, Session, Visitor
from chatmemory.services import Actor
from tests.browsers import TIMEOUT_MS, Chat, open_account
from tests.conftest import database_environment
from tests.factories import make_user
from tests.pages.test_widget import check_access
from tests.servers import Server

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db(transaction=True)]

STATIC = Path(chatmemory.__file__).parent / "static" / "chatmemory"
SITE = "http://localhost:8123"
OTHER_SITE = "http://localhost:8124"
EMBED_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Another shop</title>
<script type="module" src="/static/element/chat.js"></script><h1>Another shop</h1>
<chat-memory sockets="{0}/ws/chat/" api="{0}/api/" embed="shop" mode="button" label="Ask us">
</chat-memory>"""
MARKDOWN = "It is **free** from 50."
REPLY = "It is free from 50."


@pytest.fixture(scope="module")
def shop_server(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    server = Server(
        database_environment(),
        tmp_path_factory.mktemp("servers") / "log",
        LEASE=3,
        ALLOW_ANONYMOUS=True,
        EMBEDS={"shop": [SITE]},
    )
    yield server
    server.kill()


@pytest.fixture
def page(
    transactional_db: None, shop_server: Server, launch: Callable[[str], Browser], chromium: str
) -> Iterator[Page]:
    """A tab of a browser without cookies, which violates no policy; the server runs."""
    shop_server.start()
    with launch(chromium).new_context() as context:
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        lines: list[str] = []
        page.on("console", lambda line: lines.append(line.text))
        page.on("pageerror", lambda error: lines.append(f"Error: {error}"))
        yield page
        assert [line for line in lines if re.search("^Error:|Content Security", line)] == []


def elsewhere(query):
    """Run a query in another thread: Playwright's event loop occupies this one."""

    def run():
        try:
            return query()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def visitors():
    return elsewhere(lambda: Visitor.objects.count())


def owners():
    """Return the scopes of the sessions that are not purged."""
    found = Session.objects.filter(removed_at=None).values_list("scope", flat=True)
    return elsewhere(lambda: sorted(found))


def open_panel(page: Page) -> Chat:
    page.get_by_role("button", name="Ask us", exact=True).click()
    chat = Chat(page)
    expect(chat.box).to_be_focused()
    return chat


def sign_in(page: Page, address: str, username: str = "ann") -> str:
    """Sign a new user in; return the scope."""

    def login() -> tuple[str, str]:
        client, user = Client(), make_user(username)
        client.force_login(user)
        return client.cookies[settings.SESSION_COOKIE_NAME].value, f"user:{user.pk}"

    key, scope = elsewhere(login)
    name = settings.SESSION_COOKIE_NAME
    page.context.add_cookies([{"name": name, "value": key, "url": address}])
    return str(scope)


def test_a_visitor_of_the_shop_chats_returns_and_takes_the_chat_along(page, shop_server):
    shop = f"{shop_server.address}/shop/"
    page.goto(shop)
    chat = open_panel(page)
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    assert (visitors(), owners()) == (0, [])  # a page view stores nothing

    page.route("**/api/visitors/", lambda route: route.fulfill(status=503))
    chat.send(MARKDOWN)
    expect(chat.banner).to_contain_text("Your message is kept.")
    page.unroute("**/api/visitors/")
    chat.banner.get_by_role("button", name="Try again").click()
    chat.expect_rows(MARKDOWN, REPLY)
    expect(page.locator(".cm-rich strong")).to_have_text("free")
    cookie = next(one for one in page.context.cookies() if one["name"] == LOCAL_COOKIE)
    assert cookie["httpOnly"]
    assert visitors() == 1

    page.reload()
    chat = open_panel(page)
    chat.expect_rows(MARKDOWN, REPLY)
    expect(page.locator(".cm-rich strong")).to_have_text("free")  # the page loads the stored HTML
    (scope,) = owners()
    assert scope.startswith("visitor:")

    user = sign_in(page, shop_server.address)
    page.reload()
    open_panel(page)
    question = page.get_by_role("region", name="Move your earlier chats to your account?")
    expect(question.get_by_role("listitem")).to_have_text(MARKDOWN)
    check_access(page)
    assert owners() == [scope]  # the login alone moves nothing
    question.get_by_role("button", name="Not now").click()
    expect(question).to_have_count(0)
    page.evaluate("sessionStorage.clear()")  # as in another tab, later
    page.reload()
    chat = open_panel(page)
    question.get_by_role("button", name="Move").click()
    chat.expect_rows(MARKDOWN, REPLY)
    expect(question).to_have_count(0)
    expect(chat.box).to_be_focused()
    assert owners() == [user]
    assert not [one for one in page.context.cookies() if one["name"] == LOCAL_COOKIE]
    chat.send("As a user.")
    chat.expect_rows(MARKDOWN, REPLY, "As a user.", "As a user.")


def test_after_the_end_of_a_visitor_a_new_one_starts(page, shop_server):
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    chat.send("one")
    chat.expect_rows("one", "one")
    elsewhere(lambda: Visitor.objects.all().delete())
    page.reload()
    page.get_by_role("button", name="Ask us", exact=True).click()
    page.keyboard.type("tw")
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    expect(chat.banner).to_be_hidden()
    assert visitors() == 0
    page.keyboard.type("o")  # neither the text nor the focus is lost
    page.keyboard.press("Enter")
    chat.expect_rows("two", "two")
    assert visitors() == 1
    elsewhere(lambda: Visitor.objects.update(ends_at=DatabaseNow()))
    chat.send("three")  # it is refused, and sent by the next visitor
    chat.expect_rows("three", "three")
    note = page.get_by_role("region", name="This chat has ended.")
    check_access(page)
    note.get_by_role("button", name="Dismiss").click()
    expect(note).to_have_count(0)
    expect(chat.box).to_be_focused()
    elsewhere(lambda: Visitor.objects.filter(ends_at__lte=DatabaseNow()).delete())
    assert visitors() == 1
    elsewhere(purge_newest)
    expect(chat.banner).to_contain_text("This chat was removed. Your next message starts a new")
    chat.banner.get_by_role("button", name="New chat").click()
    expect(chat.rows).to_have_count(0)
    page.reload()
    chat = open_panel(page)
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    assert len(owners()) == 2  # still those of the deleted visitors
    chat.send("four")
    chat.expect_rows("four", "four")
    assert (visitors(), len(owners())) == (1, 3)

    page.goto("about:blank")
    elsewhere(purge_newest)
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    assert len(owners()) == 2  # a view of a purged chat opens no other


def purge_newest():
    key, scope = Session.objects.order_by("pk").values_list("key", "scope").last()
    by = Actor.server("a task")
    services.purge_session(session_key=key, scope=scope, by=by, reason="a test")


def test_a_visitor_saves_and_deletes_the_chat_in_all_tabs(page, shop_server):
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    menu = page.get_by_role("button", name="Options")
    expect(menu).to_be_hidden()
    chat.send(MARKDOWN)
    chat.expect_rows(MARKDOWN, REPLY)
    second = page.context.new_page()
    second.goto(f"{shop_server.address}/shop/")
    other = open_panel(second)
    other.expect_rows(MARKDOWN, REPLY)

    menu.click()
    check_access(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save a copy").click()
    assert download.value.suggested_filename == "chat.md"
    assert MARKDOWN in download.value.path().read_text()
    page.keyboard.press("Escape")
    expect(menu).to_be_focused()
    chat.box.fill("half a thought")
    menu.click()
    page.get_by_role("button", name="Delete my data").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    check_access(page)
    page.route("**/api/visitors/me/", lambda route: route.fulfill(status=503))
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("Your data can't be deleted now.")).to_be_visible()
    page.unroute("**/api/visitors/me/")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("Your data was deleted.")).to_be_visible()
    expect(chat.rows).to_have_count(0)
    expect(chat.box).to_have_value("")
    expect(menu).to_be_hidden()
    assert (visitors(), owners(), page.context.cookies()) == (0, [], no_visitor(page))

    expect(other.banner).to_contain_text("Your next message starts a new one.")
    expect(second.get_by_role("button", name="Options")).to_be_hidden()
    other.send("again")
    other.expect_rows("again", "again")
    page.reload()
    open_panel(page).expect_rows("again", "again")
    assert (visitors(), len(owners())) == (1, 1)


@pytest.mark.regression
def test_a_visitor_who_began_another_chat_can_still_delete_the_first(page, shop_server):
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    menu = page.get_by_role("button", name="Options")
    chat.send("one")
    chat.expect_rows("one", "one")
    menu.click()
    page.get_by_role("button", name="New chat").click()
    expect(chat.rows).to_have_count(0)
    page.reload()
    chat = open_panel(page)
    menu.click()
    expect(page.get_by_role("button", name="New chat")).to_have_count(0)  # it is one
    page.get_by_role("button", name="Delete my data").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("Your data was deleted.")).to_be_visible()
    expect(menu).to_be_hidden()
    assert (visitors(), owners()) == (0, [])
    chat.send("two")
    chat.expect_rows("two", "two")
    assert (visitors(), len(owners())) == (1, 1)


def no_visitor(page):
    """Return the browser's cookies without that of a visitor."""
    return [one for one in page.context.cookies() if one["name"] != LOCAL_COOKIE]


def test_a_browser_that_refuses_locks_sends_the_first_message(page, shop_server):
    """As one that blocks the storage of the site."""
    page.add_init_script("LockManager.prototype.request = async () => { throw Error('refused'); }")
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    chat.send("one")
    chat.expect_rows("one", "one")


@pytest.mark.parametrize("is_embed", [False, True])
def test_the_first_messages_of_two_tabs_create_one_visitor(page, shop_server, is_embed):
    if is_embed:
        serve_embed(page.context, shop_server)
    tabs = [page, page.context.new_page()]
    for tab in tabs:
        tab.goto(SITE if is_embed else f"{shop_server.address}/shop/")
    chats = [open_panel(tab) for tab in tabs]
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()

    page.context.route("**/api/visitors/", hold_first)
    for chat, text in zip(chats, ("one", "two"), strict=True):
        chat.send(text)
        expect(chat.text(text)).to_be_visible()
    page.wait_for_timeout(200)  # a second request would have been sent
    assert len(held) == 1
    held[0].continue_()
    chats[0].expect_rows("one", "one")
    chats[1].expect_rows("two", "two")
    assert (visitors(), len(owners())) == (1, 2)


@pytest.mark.parametrize("sees_the_end", [False, True])
def test_chats_that_moved_at_the_login_are_continued_with_a_note(page, shop_server, sees_the_end):
    """As with VISITOR_ADOPT=auto, or after an answer to the list of chats in another tab."""
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    chat.send("one")
    chat.expect_rows("one", "one")
    user = sign_in(page, shop_server.address)
    if not sees_the_end:
        page.goto("about:blank")
    elsewhere(lambda: adopt_all(user))
    if sees_the_end:
        # A process may read that the session is gone before it hears that the visitor has ended.
        expect(chat.banner).to_contain_text(re.compile("This chat (has ended|was removed)"))
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    chat.expect_rows("one", "one")
    note = page.get_by_role("region", name="Your earlier chats are in your account now.")
    check_access(page)
    note.get_by_role("button", name="Dismiss").click()
    page.reload()
    open_panel(page).expect_rows("one", "one")
    expect(note).to_have_count(0)
    assert owners() == [user]


def adopt_all(user):
    by = Actor("user", user.removeprefix("user:"), "ann")
    for visitor in Visitor.objects.all():
        services.adopt_visitor(by=by, visitor=Actor.known_visitor(visitor.digest))


def test_a_login_in_another_tab_ends_the_visitor_here(page, shop_server):
    """A login renews the CSRF token too, so a page from before it has to be loaded again."""
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    chat.send("one")
    chat.expect_rows("one", "one")
    # Not `make_user`: the server knows no hashes of tests.
    password = PBKDF2PasswordHasher().encode("secret", "0" * 22)
    elsewhere(lambda: User.objects.create(username="ann", password=password))
    second = page.context.new_page()
    second.goto(f"{shop_server.address}/accounts/login/?next=/chat/")
    second.get_by_label("Username").fill("ann")
    second.get_by_label("Password").fill("secret")
    second.get_by_role("button", name="Sign in").click()
    second.get_by_role("button", name="Move").click()
    expect(second.get_by_text("Your earlier chats are in your account now.")).to_be_visible()
    chat.send("two")
    expect(chat.banner).to_contain_text("This page is out of date.")
    with page.expect_navigation():
        chat.banner.get_by_role("button", name="Reload").click()
    chat = open_panel(page)
    expect(chat.box).to_have_value("two")  # kept, but not sent in the name of the user
    chat.box.press("Enter")
    chat.expect_rows("two", "two")
    assert len(owners()) == 2
    open_account(second).get_by_role("button", name="Sign out").click()
    expect(chat.banner).to_contain_text("You are signed out.")
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    chat.send("three")
    chat.expect_rows("three", "three")
    assert len([scope for scope in owners() if scope.startswith("visitor:")]) == 1
    assert visitors() == 2  # the adopted one stays until the end of its cookie


def open_own(page: Page, server: Server, key: str) -> Chat:
    """Open a page with a widget for this key."""
    tag = f'<chat-memory url="/ws/chat/{key}/" api="/api/"></chat-memory>'
    script = '<script type="module" src="/static/chatmemory/element/chat.js"></script>'
    html = f"<!doctype html>{script}{tag}"
    page.route("**/own/", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto(f"{server.address}/shop/")  # for the CSRF token
    page.goto(f"{server.address}/own/")
    return Chat(page)


def test_a_key_that_is_no_chat_of_the_visitor_ends_with_a_notice(page, shop_server):
    opened: list[str] = []
    page.on("websocket", lambda socket: opened.append(socket.url))
    chat = open_own(page, shop_server, "order-4711")
    chat.send("not lost")
    expect(chat.banner).to_have_text("This chat does not exist.")
    expect(page.locator(".cm-unsent .cm-text")).to_have_text("not lost")
    assert len(opened) == 1


@pytest.mark.regression
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_message_is_not_sent_in_the_name_of_another_user_who_signed_in_meanwhile(
    page, shop_server, has_begun
):
    sign_in(page, shop_server.address)
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    if has_begun:
        chat.send("one")
        chat.expect_rows("one", "one")
        shop_server.kill()
        expect(chat.banner).to_be_visible()
    bob = sign_in(page, shop_server.address, "bob")
    chat.send("a secret of Ann")
    shop_server.start()
    expect(chat.banner).to_contain_text("You are signed in as someone else.")
    expect(page.locator(".cm-unsent")).to_contain_text("a secret of Ann")
    assert not elsewhere(lambda: Session.objects.filter(scope=bob).exists())


@pytest.mark.regression
def test_a_removed_chat_whose_key_the_page_gives_begins_again_with_the_next_message(
    page, shop_server
):
    key = str(uuid.uuid4())
    chat = open_own(page, shop_server, key)
    chat.send("one")
    chat.expect_rows("one", "one")
    page.goto("about:blank")
    elsewhere(purge_newest)
    chat = open_own(page, shop_server, key)
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    chat.send("two")
    chat.expect_rows("two", "two")
    assert (visitors(), len(owners())) == (1, 1)


def test_a_visitor_who_is_refused_is_not_replaced_and_an_old_page_is_reloaded(page, shop_server):
    page.goto(f"{shop_server.address}/shop/")
    chat = open_panel(page)
    page.route("**/api/visitors/", without_cookies)
    chat.send("one")
    expect(chat.banner).to_contain_text("This site can't open the chat.")
    page.unroute("**/api/visitors/")
    assert visitors() == 1
    page.reload()
    chat = open_panel(page)
    chat.expect_rows("one", "one")  # the unsent message creates another visitor
    assert visitors() == 2

    page.evaluate("localStorage.clear(); sessionStorage.clear()")
    page.reload()
    chat = open_panel(page)
    sign_in(page, shop_server.address)  # in another tab
    chat.send("two")
    expect(chat.banner).to_contain_text("This page is out of date.")
    assert len(owners()) == 1
    with page.expect_navigation():
        chat.banner.get_by_role("button", name="Reload").click()
    chat = open_panel(page)
    chat.send("three")
    chat.expect_rows("three", "three")
    assert visitors() == 2


def without_cookies(route: Route) -> None:
    response = route.fetch(max_redirects=0)
    headers = {name: text for name, text in response.headers.items() if name != "set-cookie"}
    page = route.request.frame.page
    page.context.clear_cookies(name=LOCAL_COOKIE)  # the request of Playwright has stored it
    route.fulfill(response=response, headers=headers)


def test_a_visitor_chats_on_another_site_without_a_cookie(page, shop_server):
    cookies: list[str | None] = []
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.on("websocket", lambda socket: addresses.append(socket.url))
    lines: list[str] = []
    page.on("console", lambda line: lines.append(line.text))
    page.on("request", lambda request: cookies.append(request.all_headers().get("cookie")))
    serve_embed(page, shop_server)
    typo = EMBED_PAGE.format(shop_server.address).replace('"shop"', '"shopp" details')
    page.goto(SITE)
    chat = open_panel(page)
    assert visitors() == 0
    chat.send(MARKDOWN)
    chat.expect_rows(MARKDOWN, REPLY)
    page.reload()
    chat = open_panel(page)
    chat.expect_rows(MARKDOWN, REPLY)
    expect(page.locator(".cm-rich strong")).to_have_text("free")
    assert visitors() == 1
    token = page.evaluate("JSON.parse(Object.values(localStorage)[0]).token")
    assert len(token) == 43
    assert [one for one in addresses if token in one or "ticket." in one] == []
    assert set(cookies) == {None}
    assert page.context.cookies() == []

    page.get_by_role("button", name="Options").click()
    page.get_by_role("button", name="New chat").click()
    chat.send("two")
    chat.expect_rows("two", "two")
    page.reload()
    open_panel(page).expect_rows("two", "two")
    assert (visitors(), len(owners())) == (1, 2)

    page.evaluate("localStorage.clear()")
    page.route(SITE, lambda route: route.fulfill(body=typo, content_type="text/html"))
    page.goto(SITE)
    chat = open_panel(page)
    chat.send("no")
    reason = f"EMBEDS has no 'shopp' with the origin '{SITE}'."
    expect(chat.banner).to_contain_text(f"Your message is kept. {reason}")

    page.goto(OTHER_SITE)  # it uses the same public key
    chat = open_panel(page)
    chat.send("no")
    expect(chat.banner).to_contain_text("The chat can't be started now. Your message is kept.")
    assert any(f'EMBEDS"] must list {OTHER_SITE} for "shop"' in line for line in lines)
    assert visitors() == 1


@pytest.mark.regression
def test_without_https_the_widget_on_another_site_shows_the_servers_reason(page, tmp_path):
    environment = {**database_environment(), "DEBUG": "0"}
    server = Server(
        environment, tmp_path / "log", ALLOW_ANONYMOUS=True, EMBEDS={"shop": [SITE]}
    ).start()
    lines: list[str] = []
    page.on("console", lambda line: lines.append(line.text))
    serve_embed(page, server)
    body = EMBED_PAGE.format(server.address).replace('"shop"', '"shop" details')
    page.route(SITE, lambda route: route.fulfill(body=body, content_type="text/html"))
    page.goto(SITE)
    chat = open_panel(page)
    chat.send("not lost")
    expect(chat.banner).to_contain_text(f"Your message is kept. {NEEDS_HTTPS}")
    assert any(NEEDS_HTTPS in line for line in lines)
    assert not any("EMBEDS" in line for line in lines)
    server.kill()


def test_another_embed_of_the_site_does_not_get_the_draft(page, shop_server):
    serve_embed(page, shop_server)
    page.goto(SITE)
    open_panel(page).box.fill("for the shop")
    other = EMBED_PAGE.format(shop_server.address).replace('"shop"', '"help"')
    page.route(f"{SITE}/help", lambda route: route.fulfill(body=other, content_type="text/html"))
    page.goto(f"{SITE}/help")
    expect(open_panel(page).box).to_have_value("")
    page.goto(SITE)
    expect(open_panel(page).box).to_have_value("for the shop")


def serve_embed(page: Page | BrowserContext, server: Server) -> None:
    """Serve a page with the widget, and the static files, on two other sites."""

    def answer(route: Route) -> None:
        name = route.request.url.partition("/static/")[2]
        if name:
            route.fulfill(path=STATIC / name)
        else:
            body = EMBED_PAGE.format(server.address)
            route.fulfill(body=body, content_type="text/html; charset=utf-8")

    page.route(re.compile("^http://localhost:812"), answer)
