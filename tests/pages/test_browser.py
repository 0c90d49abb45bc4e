"""The chat page in a real browser, on a real server."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from playwright.sync_api import (
    APIResponse,
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Page,
    Request,
    Route,
    WebSocket,
    WebSocketRoute,
    expect,
)

from chatmemory import services
from chatmemory.models import Session
from chatmemory.services import Actor
from tests import frames
from tests.browsers import TIMEOUT_MS, Chat, open_account
from tests.conftest import database_environment
from tests.factories import make_messages, make_user
from tests.payloads import PAYLOADS
from tests.servers import SERVERS, Server, on_each_server

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

FORBIDDEN = (
    "chat-memory :is(script, style, link, meta, base, img, iframe, svg:not(button svg)"
    ", form:not(.cm-composer), math:not([alttext]), math [href], maction, annotation-xml, mglyph"
    ", object, embed, [style], [onerror], [onload], a[href^='javascript' i])"
)


UNREACHABLE = re.compile(
    "ERR_CONNECTION|ERR_INTERNET_DISCONNECTED|ERR_CONTENT_LENGTH_MISMATCH|ERR_EMPTY_RESPONSE"
    "|ERR_INCOMPLETE_CHUNKED_ENCODING|WebSocket connection|establish a connection"
)
"""What browsers write if a server was killed."""


CSRF_TOKEN = "a" * 32


class Desk:
    """A server, and the browser of a user who is signed in."""

    def __init__(self, server: Server, browser: Browser, login: str) -> None:
        self.server = server
        self.browser = browser
        self.login = login
        self.context = self.new_context()
        self.problems: list[str] = []

    def new_context(self, **options: Any) -> BrowserContext:
        context = self.browser.new_context(**options)
        context.set_default_timeout(TIMEOUT_MS)
        cookies = {settings.SESSION_COOKIE_NAME: self.login, settings.CSRF_COOKIE_NAME: CSRF_TOKEN}
        context.add_cookies(
            [
                {"name": name, "value": value, "url": self.server.address}
                for name, value in cookies.items()
            ]
        )
        return context

    def page(self) -> Page:
        """Open a tab that records dialogs, errors, policy violations and foreign requests."""
        page = self.context.new_page()
        page.on("dialog", self._on_dialog)
        page.on("pageerror", self._on_error)
        page.on("console", self._on_console)
        page.on("request", self._on_request)
        page.on("websocket", self._on_websocket)
        return page

    def open(self, key: str = "", *, ready: bool = True) -> Chat:
        """Open a session, by default a stored one without messages."""
        page = self.page()
        page.goto(self.url(key or self.create_session()))
        chat = Chat(page)
        if ready:
            chat.expect_live()
        return chat

    def create_session(self) -> str:
        key = str(uuid.uuid4())
        headers = {"X-CSRFToken": CSRF_TOKEN}
        answer = self.fetch("", method="POST", data={"key": key}, headers=headers)
        assert answer.status == 201
        return key

    def fetch(self, path: str, **options: Any) -> APIResponse:
        """Send a request to the REST API of sessions.

        The second attempt is for connections that the server closes at this moment, unused for 5 s.
        """
        address = f"{self.server.address}/api/sessions/{path}"
        return self.context.request.fetch(address, max_retries=1, **options)

    def url(self, key: str = "") -> str:
        """Return the address of a session, by default of a new one."""
        return f"{self.server.address}/chat/{key or uuid.uuid4()}/"

    def messages(self, chat: Chat) -> list[tuple[str, str, str]]:
        """Return role, status and text of the stored messages."""
        key = chat.page.url.split("/")[-2]
        rows = self.fetch(f"{key}/messages/").json()["messages"]
        return [(row["role"], row["status"], row["text"]) for row in rows]

    def _on_dialog(self, dialog: Dialog) -> None:
        self._record("dialog", dialog.message)
        dialog.dismiss()

    def _on_error(self, error: Error) -> None:
        if not UNREACHABLE.search(str(error)):
            self._record("error", str(error))

    def _on_console(self, line: ConsoleMessage) -> None:
        if line.type == "error" and not UNREACHABLE.search(line.text):
            self._record("console", f"{line.text} ({line.location['url']})")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(self.server.address):
            self._record("request", request.url)

    def _on_websocket(self, socket: WebSocket) -> None:
        socket.on("framesent", partial(self._check_frame, "client"))
        socket.on("framereceived", partial(self._check_frame, "server"))

    def _check_frame(self, side: str, data: str | bytes) -> None:
        if fault := frames.fault_of(side, json.loads(data)):
            self._record("frame", fault)

    def _record(self, kind: str, what: str) -> None:
        self.problems.append(f"{kind}: {what}")


@pytest.fixture(scope="module")
def kept(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Server]]:
    """A server of each program for all tests; each test starts the server that it needs."""
    folder = tmp_path_factory.mktemp("servers")
    servers = {
        program: Server(database_environment(), folder / program, program=program, LEASE=3)
        for program in SERVERS
    }
    yield servers
    for server in servers.values():
        server.kill()


@pytest.fixture
def server(transactional_db: None, kept: dict[str, Server]) -> Server:
    return kept["uvicorn"]


@pytest.fixture
def login(transactional_db: None) -> str:
    """Sign Ann in; return the key of the Django session."""
    client = Client()
    client.force_login(make_user("ann"))
    return client.cookies[settings.SESSION_COOKIE_NAME].value


@pytest.fixture
def long_talk(login: str) -> None:
    by = Actor.user(User.objects.get(username="ann"))
    services.open_session(session_key="long", by=by, title="A long talk")
    texts = (f"Message {number}" for number in range(1, 161))
    services.append_messages(session_key="long", messages=make_messages(*texts), by=by)


@pytest.fixture
def browser(launch: Callable[[str], Browser], browser_path: str) -> Browser:
    return launch(browser_path)


@pytest.fixture
def desk(server: Server, browser: Browser, login: str) -> Iterator[Desk]:
    """A desk whose server runs. Fails the test if the browser reported a problem."""
    server.start()
    desk = Desk(server, browser, login)
    yield desk
    assert desk.problems == []


@pytest.fixture
def desk_with_long_talk(long_talk: None, desk: Desk) -> Desk:
    """A desk, and a session `long` with 160 messages."""
    return desk


@pytest.mark.long
@on_each_server
def test_a_reply_is_streamed_and_a_reload_shows_it_whole(kept, browser, login, program):
    kept[program].start()
    desk = Desk(kept[program], browser, login)
    chat = desk.open()
    chat.send("count 40")
    expect(chat.page.locator("[aria-busy] .cm-text")).to_have_text(re.compile(r"^1 2 3 "))
    numbers = " ".join(map(str, range(1, 41)))
    expect(chat.page.locator("[aria-busy]")).to_have_count(0)
    chat.expect_rows("count 40", numbers)
    chat.page.reload()
    chat.expect_rows("count 40", numbers)
    expect(chat.page).to_have_title("count 40")
    assert desk.problems == []


@pytest.mark.firefox
def test_two_tabs_see_each_others_messages_live(desk):
    one = desk.open()
    other = desk.open(one.page.url.split("/")[-2])
    one.send("from the first")
    other.expect_rows("from the first", "from the first")
    other.send("from the second")
    for chat in (one, other):
        chat.expect_rows(*["from the first"] * 2, *["from the second"] * 2)


@pytest.mark.long
def test_a_closed_tab_does_not_end_the_reply(desk):
    chat = desk.open()
    chat.send("count 60")
    expect(chat.page.locator("[aria-busy] .cm-text")).to_contain_text("2 ")
    key = chat.page.url.split("/")[-2]
    chat.page.close()
    again = desk.open(key)
    expect(again.page.locator("[data-seq='2'] .cm-text")).to_have_text(re.compile(" 60 ?$"))
    assert [status for _, status, _ in desk.messages(again)] == ["complete", "complete"]


@pytest.mark.firefox
def test_a_stop_keeps_the_partial_reply(desk):
    chat = desk.open()
    chat.send("count 300")
    expect(chat.page.locator("[aria-busy] .cm-text")).to_contain_text("3 ")
    chat.stop.click()
    expect(chat.page.locator(".cm-note", has_text="Stopped before the end")).to_be_visible()
    expect(chat.stop).to_be_hidden()
    _, (role, status, text) = desk.messages(chat)
    assert (role, status) == ("assistant", "interrupted")
    assert text.startswith("1 2 3 ")
    chat.page.reload()
    chat.expect_rows("count 300", text.strip())


@pytest.mark.firefox
def test_a_failed_reply_shows_the_reason_and_the_partial_text(desk):
    chat = desk.open()
    chat.send("fail")
    expect(chat.page.locator(".cm-failed .cm-note")).to_have_text(
        "The bot failed. An operator has to fix this."
    )
    chat.expect_rows("fail", "So far,")
    chat.page.reload()
    expect(chat.page.locator(".cm-failed .cm-note")).to_have_text(
        "The bot failed. An operator has to fix this."
    )


@pytest.mark.firefox
@pytest.mark.long
def test_a_message_written_while_the_server_is_down_arrives_later(desk):
    chat = desk.open()
    chat.send("before")
    chat.expect_rows("before", "before")
    desk.server.kill()
    expect(chat.banner).to_be_visible()
    chat.send("in between")
    expect(chat.page.locator(".cm-unsent .cm-note")).to_contain_text("Not sent yet")
    desk.server.start()
    chat.expect_live()
    chat.expect_rows(*["before"] * 2, *["in between"] * 2)
    expect(chat.banner).to_be_hidden()
    assert [text for role, _, text in desk.messages(chat) if role == "user"] == [
        "before",
        "in between",
    ]


@pytest.mark.firefox
@pytest.mark.long
def test_a_server_killed_during_a_reply_leaves_the_partial_reply(desk):
    chat = desk.open()
    chat.send("count 300")
    expect(chat.page.locator("[aria-busy] .cm-text")).to_contain_text("25 ")
    desk.server.kill()
    desk.server.start()
    ended = chat.page.locator(".cm-interrupted")
    expect(ended.locator(".cm-note")).to_have_text("Stopped before the end.", timeout=40_000)
    expect(ended.locator(".cm-text")).to_have_text(re.compile("^1 2 3 4 "))
    expect(chat.stop).to_be_hidden()


@pytest.mark.firefox
def test_an_unsent_message_survives_a_reload(desk):
    page = desk.page()
    is_losing = True

    def route(web_socket: WebSocketRoute) -> None:
        real = web_socket.connect_to_server()
        web_socket.on_message(
            lambda frame: None if is_losing and '"send"' in str(frame) else real.send(frame)
        )

    page.route_web_socket(re.compile("/ws/"), route)
    page.goto(desk.url())
    chat = Chat(page)
    chat.send("don't lose me")
    chat.expect_live()
    expect(page.locator(".cm-unsent")).to_be_visible()
    is_losing = False
    page.reload()
    chat.expect_rows("don't lose me", "don't lose me")


@pytest.mark.firefox
def test_a_second_message_waits_for_the_reply_before_it(desk):
    chat = desk.open()
    chat.send("count 300")
    expect(chat.stop).to_be_visible()
    chat.send("and then")
    chat.send("never")
    waiting = chat.page.locator(".cm-waiting")
    expect(waiting.locator(".cm-text")).to_have_text(["and then", "never"])
    waiting.nth(1).get_by_role("button", name="Cancel").click()
    expect(waiting.locator(".cm-text")).to_have_text(["and then"])
    chat.stop.click()
    chat.expect_rows("count 300", re.compile("^1 "), "and then", "and then")


def test_the_progress_of_a_run_is_shown(desk):
    chat = desk.open()
    chat.send("search weather")
    line = chat.page.locator(".cm-activity")
    expect(line).to_contain_text("Using weather…")
    chat.page.reload()
    expect(line).to_contain_text("Using weather…")
    chat.stop.click()
    expect(line).to_have_count(0)


@pytest.mark.firefox
@pytest.mark.long
def test_an_edit_and_a_second_answer_leave_older_versions(desk):
    chat = desk.open()
    chat.send("one")
    chat.expect_rows("one", "one")
    other = desk.open(chat.page.url.split("/")[-2])
    chat.tool(1, "Edit").click()
    box = chat.page.get_by_role("textbox", name="Edit message")
    box.fill("two")
    box.press("Enter")
    other.expect_rows("two", "two")
    other.tool(4, "Answer again").click()
    expect(chat.page.locator("[data-seq='6']")).to_be_visible()
    chat.page.reload()
    chat.expect_rows("two", "two")
    expect(chat.page.locator("[data-seq='5'] .cm-tools")).to_contain_text("3 of 3")
    chat.tool(5, "Previous version").click()
    chat.tool(3, "Previous version").click()
    chat.expect_rows("one", "one")
    chat.send("three")
    chat.expect_rows("two", "two", "three", "three")
    other.expect_rows("two", "two", "three", "three")


IS_UNCOVERED = """node => {
    const {left, top, width, height} = node.getBoundingClientRect();
    return node.contains(document.elementFromPoint(left + width / 2, top + height / 2));
}"""
TO_THE_EDGE = """node => {
    const log = node.closest('.cm-log');
    log.scrollTop += node.getBoundingClientRect().bottom - log.getBoundingClientRect().bottom + 20;
}"""


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_the_notice_of_an_older_version_is_visible_at_every_scroll_position(desk, width, scheme):
    viewport = {"width": width, "height": 700}
    desk.context = desk.new_context(viewport=viewport, color_scheme=scheme)
    chat = desk.open()
    chat.send("\n".join(f"line {number}" for number in range(1, 31)))
    expect(chat.rows).to_have_count(2)
    chat.tool(2, "Answer again").click()
    bar = chat.page.locator(".cm-tools", has_text="2 of 2")
    expect(chat.tool(4, "Answer again")).to_be_visible()
    bar.evaluate(TO_THE_EDGE)
    expect(chat.page.get_by_role("button", name="Newest messages")).to_be_visible()
    bar.get_by_role("button", name="Previous version").click()
    notice = chat.page.locator(".cm-old-note")
    following = chat.page.get_by_role("button", name="Next version")
    for place in (0, 0.5, 1):
        expect(notice).to_be_in_viewport(ratio=1)
        for seen in (notice, notice.get_by_role("button")):
            assert seen.evaluate(IS_UNCOVERED)
        if place == 0:
            assert following.evaluate(IS_UNCOVERED)
        notice.evaluate(
            "(node, place) => { const log = node.closest('.cm-log');"
            " log.scrollTop = place * log.scrollHeight; }",
            place,
        )
    notice.get_by_role("button", name="Show the newest version").click()
    expect(bar).to_be_visible()
    expect(notice).to_have_count(0)


def test_a_sign_out_elsewhere_ends_the_page_and_keeps_unsent_messages(desk):
    chat = desk.open()
    other = desk.page()
    other.goto(f"{desk.server.address}/chat/")
    open_account(other).get_by_role("button", name="Sign out").click()
    expect(chat.banner).to_contain_text("You are signed out.")
    chat.send("not lost")
    expect(chat.page.locator(".cm-unsent .cm-text")).to_have_text("not lost")
    chat.page.get_by_role("button", name="Sign in").click()
    expect(chat.page).to_have_url(re.compile("/accounts/login/"))


@pytest.mark.regression
def test_a_new_chat_is_not_begun_in_the_name_of_another_user_who_signed_in_meanwhile(desk):
    page = desk.page()
    page.goto(f"{desk.server.address}/chat/~new/")
    chat = Chat(page)
    expect(page.locator("chat-memory[data-state=idle]")).to_be_attached()
    client = Client()
    client.force_login(make_user("bob"))
    key = client.cookies[settings.SESSION_COOKIE_NAME].value
    cookie = {"name": settings.SESSION_COOKIE_NAME, "value": key, "url": desk.server.address}
    desk.context.add_cookies([cookie])
    chat.send("a secret of Ann")
    expect(chat.banner).to_contain_text("You are signed in as someone else.")
    expect(page.locator(".cm-unsent .cm-text")).to_have_text("a secret of Ann")
    assert desk.fetch("").json()["sessions"] == []


def test_a_purge_empties_an_open_page(desk):
    chat = desk.open()
    chat.send("say a secret")
    expect(chat.rows).to_have_count(2)
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(_purge_all).result()
    expect(chat.rows).to_have_count(0)
    expect(chat.banner).to_contain_text("removed")


def _purge_all() -> None:
    try:
        for session in Session.objects.active():
            services.purge_session(
                session_key=session.key, scope=session.scope, by=Actor.server("tests"), reason=""
            )
    finally:
        connection.close()


@pytest.mark.firefox
@pytest.mark.long
def test_payloads_are_inert_while_streamed_when_finished_and_after_a_reload(desk):
    chat = desk.open()
    for number, payload in enumerate(PAYLOADS, 1):
        chat.send(payload)
        expect(chat.page.locator("article[data-seq]")).to_have_count(2 * number)
    expect(chat.page.locator(".cm-assistant .cm-rich")).not_to_have_count(0)
    expect(chat.page.locator(FORBIDDEN)).to_have_count(0)
    chat.page.reload()
    chat.expect_live()
    expect(chat.page.locator("article[data-seq]")).not_to_have_count(0)
    expect(chat.page.locator(FORBIDDEN)).to_have_count(0)
    assert [row[2] for row in desk.messages(chat)][-2] == PAYLOADS[-1]
    desk.page().goto(f"{desk.server.address}/chat/")


@pytest.mark.firefox
def test_markdown_replaces_the_streamed_text(desk):
    chat = desk.open()
    chat.send("a **bold** [link](https://example.com/)")
    reply = chat.page.locator(".cm-assistant .cm-text")
    expect(reply.locator("strong")).to_have_text("bold")
    link = reply.get_by_role("link", name="link")
    expect(link).to_have_attribute("rel", "nofollow noopener noreferrer")
    expect(chat.page.locator(".cm-user .cm-text")).to_contain_text("a **bold** [link]")


@pytest.mark.firefox
def test_a_wide_table_and_long_code_scroll_on_their_own(desk):
    desk.context = desk.new_context(viewport={"width": 390, "height": 800})
    chat = desk.open()
    words = "|".join(["uninterrupted"] * 5)
    chat.send(f"{words}\n{'|'.join(['-:'] * 5)}\n{words}\n\n```python\n{'a + ' * 50}1\n```")
    reply = chat.page.locator(".cm-assistant .cm-rich")
    for name in ("Table", "Code"):
        widths = "element => [element.scrollWidth > element.clientWidth, element.clientWidth < 390]"
        region = reply.get_by_role("group", name=name, exact=True)
        assert region.evaluate(widths) == [True, True]
        region.focus()
        chat.page.keyboard.press("ArrowRight")
        expect(region).not_to_have_js_property("scrollLeft", 0)
    height = "cell => cell.clientHeight < 2 * parseFloat(getComputedStyle(cell).lineHeight)"
    assert reply.locator("td").first.evaluate(height)
    expect(reply.locator("td").first).to_have_css("text-align", "right")
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.firefox
def test_scrolling_up_loads_earlier_messages_and_keeps_the_position(desk_with_long_talk):
    chat = desk_with_long_talk.open("long")
    expect(chat.rows).to_have_count(50)
    expect(chat.text("Message 160")).to_be_in_viewport()
    top = chat.text("Message 111")
    chat.page.locator(".cm-log").evaluate("log => { log.scrollTop = 0; }")
    expect(chat.text("Message 61")).to_be_attached()
    expect(top).to_be_in_viewport()
    expect(chat.text("Message 160")).not_to_be_in_viewport()
    chat.page.get_by_role("button", name="Newest messages").click()
    expect(chat.text("Message 160")).to_be_in_viewport()


@pytest.mark.firefox
def test_no_page_is_wider_than_a_small_phone(desk_with_long_talk):
    desk = desk_with_long_talk
    phone = {"viewport": {"width": 360, "height": 640}, "is_mobile": True, "has_touch": True}
    desk.context = desk.new_context(**phone)
    page = desk.page()
    for path in ("/", "/chat/", "/chat/long/", "/accounts/login/", "/chat/none/"):
        page.goto(desk.server.address + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    desk.problems.clear()  # the browser reports a 404 as an error


TARGET = """button => {
    const box = button.getBoundingClientRect();
    const middle = (box.top + box.bottom) / 2;
    const hits = [-11.5, 11.5].map(off => document.elementFromPoint(box.left + 4, middle + off));
    return hits.every(hit => hit === button);
}"""
"""Whether a button answers within the 24 pixels of WCAG 2.2, 2.5.8."""


@pytest.mark.long
def test_buttons_below_messages_are_large_enough_to_touch(desk_with_long_talk):
    desk = desk_with_long_talk
    phone = {"viewport": {"width": 360, "height": 640}, "is_mobile": True, "has_touch": True}
    desk.context = desk.new_context(**phone)
    chat = desk.open("long")
    buttons = chat.page.locator(".cm-tools button:visible")
    expect(buttons.last).to_be_in_viewport()
    assert buttons.last.evaluate(TARGET)


@pytest.fixture
def socketless(desk: Desk, tmp_path: Path) -> Iterator[Server]:
    """A server whose ASGI application has no route for websockets."""
    application = "tests.served:without_sockets"
    server = Server(database_environment(), tmp_path / "log", application=application)
    yield server.start()
    server.kill()


@pytest.fixture
def wsgi(desk: Desk, tmp_path: Path) -> Iterator[Server]:
    """Django's own `runserver`, as of a project that does not use daphne."""
    environment = {**database_environment(), "WITHOUT_DAPHNE": "1"}
    server = Server(environment, tmp_path / "log", program="runserver")
    yield server.start()
    server.kill()


@pytest.fixture
def foreign(desk: Desk, tmp_path: Path) -> Iterator[Server]:
    """A server that accepts websockets only from pages of another origin."""
    environment = database_environment()
    server = Server(environment, tmp_path / "log", ALLOWED_ORIGINS=["https://shop.example"])
    yield server.start()
    server.kill()


@pytest.mark.long
@pytest.mark.regression
def test_a_refused_origin_is_named_in_the_console_and_in_the_log(desk, foreign):
    page = desk.context.new_page()
    logged: list[str] = []
    page.on("console", lambda line: logged.append(line.text))
    page.goto(f"{foreign.address}/chat/{uuid.uuid4()}/")
    Chat(page).send("hi")
    expect(Chat(page).banner).to_contain_text("This site can't open the chat.", timeout=30_000)
    [details] = [text for text in logged if text.startswith("chatmemory: ")]
    assert (
        f'CHATMEMORY["ALLOWED_ORIGINS"] and ALLOWED_HOSTS must allow {foreign.address}' in details
    )
    refused = f"the origin '{foreign.address}' is not in ALLOWED_ORIGINS"
    assert foreign.log.read_text().count(refused) == 1


@pytest.mark.long
@pytest.mark.regression
@pytest.mark.parametrize(("kind", "is_staff"), [("socketless", True), ("wsgi", False)])
def test_a_page_whose_server_accepts_no_websockets_stops_and_names_the_fix(
    desk, request, kind, is_staff
):
    server = request.getfixturevalue(kind)
    page = desk.context.new_page()
    opened: list[WebSocket] = []
    logged: list[str] = []
    page.on("websocket", lambda socket: opened.append(socket))
    page.on("console", lambda line: logged.append(line.text))
    if not is_staff:
        page.route("**/chat/*/", _without_details)
    page.goto(f"{server.address}/chat/{uuid.uuid4()}/")
    chat = Chat(page)
    chat.send("not lost")
    expect(chat.banner).to_contain_text("This site can't open the chat.", timeout=30_000)
    expect(chat.banner).to_contain_text(
        "but refuses this websocket" if is_staff else "to fix it.Reload"
    )
    expect(chat.banner.get_by_role("button")).to_have_text("Reload")
    expect(page.locator(".cm-unsent .cm-text")).to_have_text("not lost")
    assert 5 <= len(opened) <= 6
    [details] = [text for text in logged if text.startswith("chatmemory: ")]
    assert 'install the extra "daphne" and put "daphne" first in INSTALLED_APPS' in details
    assert "chatmemory.routing.websocket_urlpatterns" in details
    assert server.address in details


def _without_details(route: Route) -> None:
    """Show the page as users without staff status see it; DEBUG shows the details to all."""
    answer = route.fetch()
    route.fulfill(response=answer, body=answer.text().replace(" details>", ">"))


@pytest.mark.long
@pytest.mark.regression
def test_a_page_whose_server_is_down_behind_a_proxy_keeps_retrying(desk, socketless):
    page = desk.context.new_page()
    page.route("**/ws/chat/**", lambda route: route.fulfill(status=503))
    with page.expect_console_message(
        lambda line: "is answered with status 503. The chat tries again." in line.text,
        timeout=30_000,
    ):
        page.goto(f"{socketless.address}/chat/{uuid.uuid4()}/")
        Chat(page).send("hi")
    with page.expect_websocket(timeout=30_000):
        pass
    expect(Chat(page).banner).to_contain_text("The connection is lost. Reconnecting…")
