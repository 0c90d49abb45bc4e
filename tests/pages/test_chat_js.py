"""The chat page in a real browser, with a server that the test scripts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, WebSocketRoute, expect

import chatmemory
from tests import frames
from tests.browsers import TIMEOUT_MS, Chat

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SITE = "http://chat.test"
FILES = Path(chatmemory.__file__).parent / "static" / "chatmemory"
PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/element/chat.css">
<script type="module" src="/element/chat.js"></script>
<body class="cm-page" style="height: 100dvh; min-height: 0; overflow: hidden">
<chat-memory light autofocus url="/ws/chat/k/"></chat-memory>"""


class ScriptedServer:
    """The server's end of the socket, controlled by the test."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.sockets: list[WebSocketRoute] = []
        self.frames: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        """The frames before the last one that `wait_for` returned."""
        page.route_web_socket(re.compile("/ws/"), self._open)

    def _open(self, web_socket: WebSocketRoute) -> None:
        self.sockets.append(web_socket)
        web_socket.on_message(lambda text: self.frames.append(json.loads(text)))

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Send a frame to the page; it must match the schema."""
        frame = {"type": kind, **fields}
        frames.check("server", frame)
        self.sockets[-1].send(json.dumps(frame))

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The next frame of this type. Frames before it are skipped."""
        self.skipped = []
        until = time.monotonic() + 10
        while time.monotonic() < until:
            while self.frames:
                frame = self.frames.pop(0)
                frames.check("client", frame)
                if frame["type"] == kind:
                    return frame
                self.skipped.append(frame)
            self.page.wait_for_timeout(20)
        pytest.fail(f"no {kind} frame arrived")

    def welcome(self, *messages: dict[str, Any], **session: Any) -> dict[str, Any]:
        """Answer a hello up to `synced`; return it."""
        hello = self.wait_for("hello")
        limits = {"max_message_chars": 100, "max_frame_bytes": 500}
        self.emit("welcome", v=1, session={"key": "k", "title": ""}, limits=limits)
        for message in messages:
            self.emit("message", **message)
        self.session(**{"last_seq": len(messages), **session})
        self.emit("synced", cursor="c1")
        return hello

    def accept(self, sent: dict[str, Any], **fields: Any) -> None:
        """Acknowledge a message as stored."""
        answer = {"turn": sent["client_id"], "status": "running", "duplicate": False}
        self.emit("ok", id=sent["id"], **{**answer, **fields})

    def refuse(self, sent: dict[str, Any], code: str, **fields: Any) -> None:
        """Refuse a message."""
        self.emit(
            "error", id=sent["id"], **{"code": code, "message": "No.", "retry": False, **fields}
        )

    def saved_outbox(self) -> str | None:
        """The unsent messages in the tab's storage, as JSON."""
        found: str | None = self.page.evaluate("sessionStorage.getItem('chatmemory::/ws/chat/k/')")
        return found

    def session(self, **fields: Any) -> None:
        head = {"key": "k", "title": "", "epoch": 7, "first_seq": 1, "last_seq": 0, "revision": 0}
        more = {"archived": False, "superseded": [], "running": None, "waiting": []}
        self.emit("session", **{**head, **more, **fields})


def row(seq: int, text: str, **fields: Any) -> dict[str, Any]:
    about = {"seq": seq, "revision": 0, "turn": None, "step": None, "client_id": None}
    content = {"role": "user", "status": "complete", "text": text, "content": None, "cut": False}
    more = {
        "error": "",
        "asks": None,
        "usage": None,
        "model": "",
        "created_at": "2026-01-01T00:00Z",
    }
    states = {"redacted": False, "quarantined": False, "feedback": None}
    return {**about, **content, **more, **states, **fields}


@pytest.fixture
def page(launch: Callable[[str], Browser], browser_path: str) -> Iterator[Page]:
    """A tab of a site that serves only the static files."""
    with launch(browser_path).new_context() as context:
        context.set_default_timeout(TIMEOUT_MS)
        context.route(f"{SITE}/**", serve)
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        assert errors == []


def serve(route: Route) -> None:
    name = route.request.url.removeprefix(f"{SITE}/")
    if name:
        route.fulfill(path=FILES / name)
    else:
        route.fulfill(body=PAGE, content_type="text/html")


@pytest.fixture
def scripted(page: Page) -> tuple[ScriptedServer, Chat]:
    """A page, and the server that answers its socket."""
    script = ScriptedServer(page)
    page.goto(SITE)
    return script, Chat(page)


@pytest.fixture
def new_chat(page: Page) -> tuple[ScriptedServer, Chat]:
    """A page of a chat that its first message creates, and the server."""
    html = PAGE.replace("></chat-memory>", " create></chat-memory>")
    page.route(f"{SITE}/", lambda route: route.fulfill(body=html, content_type="text/html"))
    script = ScriptedServer(page)
    page.goto(SITE)
    expect(page.get_by_text("What would you like to talk about?")).to_be_visible()
    return script, Chat(page)


def running(turn: str) -> dict[str, Any]:
    return {"turn": turn, "status": "running", "since": None}


@pytest.mark.long
def test_a_ping_is_answered(scripted):
    script, _ = scripted
    script.welcome()
    script.emit("ping", n=5)
    assert script.wait_for("pong")["n"] == 5


@pytest.mark.long
def test_text_is_set_by_a_snapshot_appended_by_deltas_and_ended_by_its_row(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", turn="t"), running=running("t"))
    expect(chat.page.get_by_text("Thinking…")).to_be_visible()
    script.emit("snapshot", turn="t", step=0, text="Hel")
    script.emit("delta", turn="t", step=0, text="lo 😀")
    chat.expect_rows("hi", "Hello 😀")
    script.emit("snapshot", turn="t", step=0, text="Hello again")
    script.emit("delta", turn="t", step=1, text="next")
    chat.expect_rows("hi", "Hello again", "next")
    script.emit("message", **row(2, "Hello again!", turn="t", step=0, role="assistant"))
    chat.expect_rows("hi", "Hello again!", "next")
    script.session(last_seq=2, revision=1)
    chat.expect_rows("hi", "Hello again!")


@pytest.mark.long
def test_newer_rows_replace_rows_and_the_floor_and_a_reset_remove_them(scripted):
    script, chat = scripted
    script.welcome(row(1, "one"), row(2, "two"), row(3, "three", revision=2))
    script.emit("message", **row(2, "", revision=4, redacted=True))
    script.emit("message", **row(3, "older", revision=1))
    expect(chat.page.locator("[data-seq='2']")).to_contain_text("removed by an operator")
    script.session(first_seq=3, last_seq=3, revision=5)
    chat.expect_rows("three")
    script.session(first_seq=1, last_seq=3, revision=4, archived=True)
    script.emit("message", **row(3, "three!", revision=6))
    chat.expect_rows("three!")
    expect(chat.box).to_be_enabled()
    script.emit("reset", reason="cleared", epoch=8, lost=0)
    script.emit("message", **row(4, "four"))
    script.session(epoch=8, first_seq=4, last_seq=4, revision=9)
    chat.expect_rows("four")
    script.session(
        epoch=6, first_seq=5, last_seq=4, revision=0
    )  # another epoch, so revisions do not count
    expect(chat.rows).to_have_count(0)


@pytest.mark.regression
@pytest.mark.parametrize(
    ("lost", "notice"), [(2, "2 messages were lost"), (None, "Some messages were lost")]
)
def test_messages_that_the_server_lost_are_replaced_and_counted(scripted, lost, notice):
    script, chat = scripted
    script.welcome(row(1, "one"), row(2, "lost"), row(3, "lost too"))
    chat.expect_rows("one", "lost", "lost too")
    script.emit("reset", reason="diverged", epoch=8, lost=lost)
    script.emit("message", **row(1, "one"))
    script.emit("message", **row(2, "another"))
    script.session(epoch=8, last_seq=2)
    script.emit("synced", cursor="c2")
    chat.expect_rows("one", "another")
    banner = chat.page.locator(".cm-banner")
    expect(banner).to_contain_text(notice)
    banner.get_by_role("button").click()
    expect(banner).to_be_hidden()
    chat.expect_rows("one", "another")


def test_a_session_that_was_removed_while_there_was_no_socket_is_not_shown(scripted):
    script, chat = scripted
    script.welcome(*replied("a secret", "known"))
    chat.expect_rows("a secret", "known")
    script.sockets[-1].close(code=1001)
    script.wait_for("hello")
    script.sockets[-1].close(code=4404)
    expect(chat.banner).to_contain_text("This chat was removed.")
    chat.expect_rows()


@pytest.mark.long
def test_a_changed_row_that_is_not_loaded_makes_no_gap(scripted):
    script, chat = scripted
    script.welcome(row(9, "nine"), row(10, "ten"), first_seq=3)
    script.emit("message", **row(4, "changed", revision=5))
    script.emit("message", **row(10, "ten!", revision=6))
    chat.expect_rows("nine", "ten!")
    fetch = script.wait_for("fetch")  # without a click, because the log has room
    assert fetch["before_seq"] == 9
    script.emit("reset", reason="restored", epoch=8, lost=0)
    script.emit("ok", id=fetch["id"], messages=[row(8, "eight")])
    script.emit("message", **row(20, "twenty"))
    script.session(epoch=8, first_seq=3, last_seq=20)
    chat.expect_rows("twenty")
    fetch = script.wait_for("fetch")
    script.emit("ok", id=fetch["id"], messages=[])
    script.emit("ping", n=1)
    script.wait_for("pong")
    assert script.skipped == []  # without rows nothing is fetched


def test_loading_earlier_messages_by_keyboard_keeps_the_focus_in_the_log(scripted):
    script, chat = scripted
    script.welcome(*[row(seq, "text\n" * 5) for seq in range(41, 61)], last_seq=60)
    older = chat.page.locator(".cm-older")
    older.press("Enter")
    for first, focused in [(21, older), (1, chat.page.locator(".cm-log"))]:
        sent = script.wait_for("fetch")
        rows = [{"type": "message", **row(seq, "t")} for seq in range(first, sent["before_seq"])]
        script.emit("ok", id=sent["id"], messages=rows)
        expect(chat.page.locator(f"[data-seq='{first}']")).to_be_attached()
        expect(focused).to_be_focused()
        if first > 1:
            chat.page.keyboard.press("Enter")


@pytest.mark.regression
@pytest.mark.parametrize("name", ["steps", "markdown", "reply"])
def test_a_part_that_could_not_be_loaded_is_loaded_later(page, name):
    asked: list[str] = []

    def refuse_first(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            route.abort()
        else:
            route.fallback()

    page.route(f"{SITE}/element/{name}.js", refuse_first)
    page.route(f"{SITE}/chat/k/html/*", lambda route: route.fulfill(json=RENDERED))
    html = PAGE.replace("></chat-memory>", ' page="/chat/k/"></chat-memory>')
    page.route(f"{SITE}/", lambda route: route.fulfill(body=html, content_type="text/html"))
    script = ScriptedServer(page)
    call = {"id": "c1", "name": "search", "args": "{}", "cut": False}
    reply = row(2, "A **word**", turn="t", role="assistant", calls=[call])
    with page.expect_event("requestfailed"):  # of reply.js already when the socket opens
        page.goto(SITE)
        script.welcome(row(1, "hi", turn="t"), reply)
    script.session(last_seq=2, revision=1)
    shown = page.locator(".cm-step" if name == "steps" else ".cm-rich strong")
    expect(shown).to_have_count(1)


RENDERED = {
    "messages": [{"seq": 2, "revision": 0, "html": "<p>A <strong>word</strong></p>"}],
    "upto": 2,
}


@pytest.mark.long
def test_an_unacknowledged_message_is_sent_again_under_its_client_id(scripted):
    script, chat = scripted
    script.welcome()
    chat.send("once")
    first = script.wait_for("send")
    assert first["epoch"] == 7
    script.emit("bye", code=4503, reason="restart", reconnect=True, after_ms=10)
    script.sockets[-1].close(code=4503)
    hello = script.welcome()
    assert hello["cursor"] == "c1"
    again = script.wait_for("send")
    assert again["client_id"] == first["client_id"]
    assert again["id"] != first["id"]
    script.emit("message", **row(1, "once", client_id=first["client_id"]))
    ok = {"turn": first["client_id"], "status": "running", "seq": 1, "duplicate": True}
    script.emit("ok", id=again["id"], **ok)
    script.session(last_seq=1, revision=1)
    expect(chat.page.locator(".cm-unsent")).to_have_count(0)
    chat.expect_rows("once")


@pytest.mark.long
def test_a_message_is_retried_if_the_error_permits_it_and_kept_otherwise(scripted):
    script, chat = scripted
    script.welcome()
    chat.send("try")
    first = script.wait_for("send")
    about = {"code": "rate_limited", "message": "Later.", "retry": True, "retry_after_ms": 5}
    script.emit("error", id=first["id"], **about)
    again = script.wait_for("send")
    assert again["client_id"] == first["client_id"]
    script.emit("error", id=again["id"], code="history_cleared", message="Cleared.", retry=False)
    chat.page.get_by_role("button", name="Send again").click()
    assert script.wait_for("send")["client_id"] != first["client_id"]


@pytest.mark.long
def test_the_client_reconnects_until_a_socket_opens(scripted):
    script, chat = scripted
    script.welcome(row(1, "one"))
    for _ in range(3):
        script.sockets[-1].close(code=1011)
        script.wait_for("hello")
    script.sockets[-1].close(code=1012)
    script.welcome()
    chat.expect_live()
    chat.expect_rows("one")


class RefusingServer(ScriptedServer):
    """A server that can refuse websockets, and collects HEAD requests until they are answered."""

    def __init__(self, page: Page, *, is_refusing: bool) -> None:
        self.is_refusing = is_refusing
        self.refusals = 0
        self.http_checks: list[Route] = []
        super().__init__(page)
        page.route("**/ws/**", lambda route: self.http_checks.append(route))

    def _open(self, web_socket: WebSocketRoute) -> None:
        if self.is_refusing:
            self.refusals += 1
            web_socket.connect_to_server()  # there is none
        else:
            super()._open(web_socket)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Advance the page's clock past the pauses between attempts."""
        until = time.monotonic() + 10
        while not condition():
            if time.monotonic() > until:
                pytest.fail("the condition never became true")
            self.page.clock.run_for(1_000)
            self.page.wait_for_timeout(20)


@pytest.fixture
def refusing(page: Page) -> tuple[RefusingServer, Chat]:
    """A page that sends an HTTP request, because its websockets were refused."""
    page.clock.install()
    script = RefusingServer(page, is_refusing=True)
    page.goto(SITE)
    script.wait_until(lambda: script.http_checks)
    return script, Chat(page)


@pytest.mark.long
@pytest.mark.regression
def test_a_server_that_does_not_answer_http_is_retried(refusing):
    script, chat = refusing
    before = script.refusals
    script.http_checks[0].abort()
    script.wait_until(lambda: script.refusals > before + 1)
    # Chromium calls a machine without a network offline.
    expect(chat.banner).to_contain_text(re.compile("The connection is lost|You are offline"))


@pytest.mark.long
@pytest.mark.regression
def test_a_socket_that_opens_during_the_http_check_stays_open(refusing):
    script, chat = refusing
    script.is_refusing = False
    script.wait_until(lambda: script.sockets)
    script.welcome(row(1, "one"))
    chat.expect_live()
    _answer(script.http_checks[0])
    chat.expect_live()
    chat.expect_rows("one")


@pytest.mark.long
@pytest.mark.regression
def test_a_server_that_answers_http_but_no_websockets_ends_the_attempts(refusing):
    script, chat = refusing
    _answer(script.http_checks[0])
    expect(chat.page.locator("chat-memory[data-state=ended]")).to_be_attached()
    before = script.refusals
    chat.page.clock.run_for(60_000)
    chat.page.wait_for_timeout(200)
    assert script.refusals == before


@pytest.mark.long
@pytest.mark.regression
def test_a_second_http_check_changes_nothing(refusing):
    script, chat = refusing
    script.wait_until(lambda: len(script.http_checks) > 1)
    _answer(script.http_checks[0])
    expect(chat.page.locator("chat-memory[data-state=ended]")).to_be_attached()
    chat.client("client.addEventListener('state', () => { window.isChanged = true; })")
    _answer(script.http_checks[1])
    assert not chat.page.evaluate("window.isChanged")


@pytest.mark.long
@pytest.mark.regression
def test_a_pending_websocket_is_ignored_after_the_final_http_check(refusing):
    script, chat = refusing
    unanswered = "class { constructor() { window.opening = this; } close() {} }"
    chat.page.evaluate(f"() => {{ window.WebSocket = {unanswered}; }}")
    script.wait_until(lambda: chat.page.evaluate("Boolean(window.opening)"))
    _answer(script.http_checks[0])
    chat.page.evaluate("window.opening.onclose({code: 1006, reason: ''})")
    chat.page.wait_for_timeout(200)
    expect(chat.page.locator("chat-memory[data-state=ended]")).to_be_attached()


@pytest.mark.long
@pytest.mark.regression
def test_a_client_closed_during_the_http_check_stays_closed(refusing):
    script, chat = refusing
    chat.client("client.close()")
    _answer(script.http_checks[0])
    expect(chat.page.locator("chat-memory[data-state=idle]")).to_be_attached()


def _answer(asked: Route) -> None:
    page = asked.request.frame.page
    with page.expect_response(asked.request.url):
        asked.fulfill(status=404)
    page.wait_for_timeout(200)


@pytest.mark.long
@pytest.mark.regression
def test_a_server_that_accepted_one_socket_is_retried_without_end(page):
    page.clock.install()
    script = RefusingServer(page, is_refusing=False)
    page.goto(SITE)
    script.welcome()
    script.is_refusing = True
    script.sockets[-1].close(code=1012)
    script.wait_until(lambda: script.refusals > 6)
    assert script.http_checks == []


@pytest.mark.long
def test_a_new_chat_states_while_there_is_no_network(new_chat):
    script, chat = new_chat
    chat.page.context.set_offline(True)
    expect(chat.banner).to_contain_text("You are offline.")
    chat.page.context.set_offline(False)
    expect(chat.banner).to_be_hidden()
    assert script.sockets == []


@pytest.mark.long
def test_the_first_message_of_a_new_chat_is_being_sent_while_it_connects(new_chat):
    script, chat = new_chat
    chat.send("one")
    assert script.wait_for("hello")["create"]
    note = chat.page.locator(".cm-tail .cm-note")
    expect(note).to_have_text("Sending…")
    script.emit("bye", code=4503, reason="shutting_down", reconnect=True, after_ms=60_000)
    expect(note).to_contain_text("It will be sent when the connection is back.")


SENTENCE = "Your plan has <b>no</b> chat."


@pytest.mark.parametrize(("code", "is_closed"), [("forbidden", True), ("refused", False)])
def test_a_refused_new_chat_puts_the_text_back_with_the_sentence_and_does_not_reconnect(
    new_chat, code, is_closed
):
    script, chat = new_chat
    chat.send("one")
    script.wait_for("hello")
    script.emit("error", code=code, message=SENTENCE, retry=False)
    if is_closed:
        script.emit("bye", code=4403, reason=code, reconnect=False, after_ms=None)
    hint = chat.page.locator(".cm-hint")
    expect(hint).to_have_text(SENTENCE)
    expect(chat.box).to_have_value("one")
    expect(chat.rows).to_have_count(0)
    expect(chat.page.get_by_text("What would you like to talk about?")).to_be_visible()
    chat.page.wait_for_timeout(700)  # the first attempt would come within 500 ms
    assert len(script.sockets) == 1
    chat.box.press("!")
    expect(hint).to_have_text(SENTENCE)
    chat.box.press("Enter")
    script.wait_for("hello")
    assert len(script.sockets) == 2
    expect(hint).to_have_text("")
    script.emit("error", code=code, message=SENTENCE, retry=False)
    expect(chat.box).to_have_value("one!")
    chat.box.fill("")
    expect(hint).to_have_text("")


def test_a_message_that_the_host_refuses_is_in_the_text_box_again_with_the_sentence(scripted):
    script, chat = scripted
    script.welcome(*replied("zero", "0"))
    chat.send("one")
    script.refuse(script.wait_for("send"), "refused", message=SENTENCE, reason="plan")
    expect(chat.page.locator(".cm-hint")).to_have_text(SENTENCE)
    expect(chat.page.locator(".cm-hint")).to_have_class(re.compile("cm-over"))
    expect(chat.box).to_have_value("one")
    expect(chat.box).to_be_focused()
    chat.expect_rows("zero", "0")
    assert script.saved_outbox() is None
    assert len(script.sockets) == 1


def test_a_message_that_an_earlier_page_may_have_sent_keeps_its_id(new_chat):
    """It may be stored: as a new message it would be stored a second time."""
    script, chat = new_chat
    chat.send("one")
    script.wait_for("hello")
    saved = script.saved_outbox()
    chat.page.reload()
    script.wait_for("hello")
    script.emit("error", code="unavailable", message="No.", retry=False)
    expect(chat.page.locator(".cm-failed .cm-text")).to_have_text("one")
    expect(chat.box).to_have_value("")
    kept = json.loads(script.saved_outbox() or "[]")
    assert [entry["client_id"] for entry in kept] == [
        entry["client_id"] for entry in json.loads(saved or "[]")
    ]


def test_a_stored_message_is_not_in_the_text_box_too(scripted):
    script, chat = scripted
    script.welcome(*replied("zero", "0"))
    chat.send("one")
    sent = script.wait_for("send")
    script.emit("message", **row(3, "one", client_id=sent["client_id"]))
    script.session(last_seq=3, revision=1)
    script.refuse(sent, "refused", message=SENTENCE, reason="plan")
    chat.expect_rows("zero", "0", "one")
    expect(chat.box).to_have_value("")


def test_a_refused_message_with_more_than_text_stays_in_the_chat(scripted):
    script, chat = scripted
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    first, reply = replied("one", "1")
    script.welcome({**first, "content": blocks}, reply)
    chat.tool(2, "Answer again").click()
    script.refuse(script.wait_for("send"), "history_cleared")
    chat.page.get_by_role("button", name="Send again").click()
    sent = script.wait_for("send")
    assert (sent.get("replaces"), sent["content"]) == (None, blocks)
    script.refuse(sent, "refused", message=SENTENCE, reason="plan")
    expect(chat.page.locator(".cm-failed .cm-note")).to_contain_text(SENTENCE)
    expect(chat.box).to_have_value("")


def test_a_refused_message_stays_in_the_chat_while_another_text_is_written_or_replaced(scripted):
    script, chat = scripted
    script.welcome(*replied("zero", "0"))
    chat.send("one")
    chat.box.fill("two")
    script.refuse(script.wait_for("send"), "refused", message=SENTENCE, reason="plan")
    expect(chat.page.locator(".cm-failed .cm-note")).to_contain_text(SENTENCE)
    expect(chat.box).to_have_value("two")
    chat.box.fill("")
    script.session(last_seq=2, revision=1, waiting=[{"turn": "w", "text": "Later"}])
    expect(chat.page.get_by_text("Later")).to_be_visible()
    expect(chat.box).to_have_value("")
    script.session(last_seq=2, revision=2)
    chat.tool(2, "Answer again").click()
    script.refuse(script.wait_for("send"), "refused", message=SENTENCE, reason="plan")
    expect(chat.page.locator(".cm-failed .cm-note", has_text=SENTENCE)).to_have_count(2)
    expect(chat.box).to_have_value("")


@pytest.mark.parametrize(
    ("bye", "sentence"),
    [
        ({"code": 4403, "reason": "refused", "message": SENTENCE}, SENTENCE),
        ({"code": 4401, "reason": "other_person"}, "You are signed in as someone else."),
    ],
)
def test_a_login_that_has_no_access_is_told_so_and_nothing_is_promised(scripted, bye, sentence):
    script, chat = scripted
    script.welcome()
    script.emit("bye", **bye, reconnect=False, after_ms=None)
    expect(chat.banner).to_contain_text(sentence)
    chat.send("one")
    expect(chat.page.locator(".cm-tail .cm-note")).to_have_text("Not sent yet.")
    assert len(script.sockets) == 1


@pytest.mark.parametrize(
    ("code", "sentence", "action"),
    [
        (4401, "You are signed out.", "Sign in"),
        (4404, "This chat was removed.", "Reload"),
        (4409, "Too many chat windows are open.", "Continue here"),
    ],
)
def test_a_final_bye_ends_the_connection(scripted, code, sentence, action):
    script, chat = scripted
    script.welcome()
    script.emit("bye", code=code, reason="test", reconnect=False, after_ms=None)
    script.sockets[-1].close(code=code)
    expect(chat.banner).to_contain_text(sentence)
    expect(chat.banner.get_by_role("button", name=action)).to_be_visible()
    chat.page.wait_for_timeout(700)  # the first attempt would come within 500 ms
    assert len(script.sockets) == 1


@pytest.mark.long
@pytest.mark.parametrize(("code", "after_ms"), [(4503, 60_000), (4429, None)])
def test_no_attempt_is_made_before_the_time_that_the_server_sent(page, code, after_ms):
    page.clock.install()
    script = ScriptedServer(page)
    page.goto(SITE)
    script.welcome()
    script.emit("bye", code=code, reason="test", reconnect=True, after_ms=after_ms)
    expect(page.locator("chat-memory[data-state=waiting]")).to_be_attached()
    page.clock.set_system_time(0)  # the clock is set back
    page.clock.run_for(2_000)
    page.evaluate("dispatchEvent(new Event('online'))")
    page.clock.run_for(10)
    assert len(script.sockets) == 1
    page.clock.run_for(after_ms or 10_000)
    script.wait_for("hello")
    assert len(script.sockets) == 2


@pytest.mark.long
def test_a_lost_stop_is_repeated_while_the_turn_runs(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", turn="t"), running=running("t"))
    chat.stop.click()
    assert script.wait_for("stop")["turn"] == "t"
    script.sockets[-1].close(code=1012)
    script.welcome(running=running("t"))
    assert script.wait_for("stop")["turn"] == "t"
    script.sockets[-1].close(code=1012)
    script.welcome(row(2, "", turn="t", role="assistant", status="interrupted"))
    chat.expect_live()
    script.emit("ping", n=1)
    script.wait_for("pong")
    assert script.skipped == []


TICKETS = """async () => {
    const {ChatMemoryClient} = await import("/client/chatmemory-client.js");
    const Real = WebSocket;
    window.offered = [];
    window.WebSocket = class extends Real {
        constructor(url, protocols) {
            super(url, protocols);
            offered.push(protocols);
        }
    };
    const tickets = ["one", "two"];
    const ticket = async () => {
        if (!tickets.length) throw {code: 4401};
        return tickets.shift();
    };
    window.client = new ChatMemoryClient("/ws/other/", {storage: null, ticket});
    client.connect();
    client.connect();
}"""


@pytest.mark.long
def test_each_connection_has_a_new_ticket(scripted):
    script, chat = scripted
    script.welcome()
    chat.page.evaluate(TICKETS)
    for _ in range(2):
        script.wait_for("hello")
        script.sockets[-1].close(code=1012)
    chat.page.wait_for_function("client.state === 'ended' && client.ending.code === 4401")
    names = [["chatmemory.v1", f"ticket.{name}"] for name in ("one", "two")]
    assert chat.page.evaluate("offered") == names
    assert len(script.sockets) == 3  # and the page's own


@pytest.mark.long
def test_a_ticket_function_that_throws_synchronously_ends_the_client(scripted):
    _, chat = scripted
    state = chat.page.evaluate(
        """async () => {
            const {ChatMemoryClient} = await import("/client/chatmemory-client.js");
            const ticket = () => {
                throw {code: 4401};
            };
            const client = new ChatMemoryClient("/ws/other/", {storage: null, ticket});
            const ended = new Promise((resolve) => client.addEventListener("state", resolve));
            client.connect();
            await ended;
            await new Promise((resolve) => setTimeout(resolve));
            return [client.state, client.ending?.code];
        }"""
    )
    assert state == ["ended", 4401]


def test_waiting_turns_are_shown_in_order_and_each_can_be_cancelled(scripted):
    script, chat = scripted
    waiting = [{"turn": "w1", "text": "later"}, {"turn": "w2", "text": "last"}]
    script.welcome(row(1, "now", turn="t"), running=running("t"), waiting=waiting)
    script.emit("snapshot", turn="t", step=0, text="So")
    chat.expect_rows("now", "So", "later", "last")
    notes = chat.page.locator(".cm-waiting .cm-note")
    expect(notes).to_contain_text(["Waiting for its turn.", "Waiting for its turn."])
    notes.nth(1).get_by_role("button", name="Cancel").click()
    stop = script.wait_for("stop")
    assert stop["turn"] == "w2"
    expect(chat.stop).to_be_enabled()
    script.emit("ok", id=stop["id"], turn="w2", status="cancelled")
    script.session(running=running("t"), waiting=waiting[:1], last_seq=1, revision=1)
    chat.expect_rows("now", "So", "later")


def test_a_message_is_shown_until_its_row_or_its_turn_arrives(scripted):
    script, chat = scripted
    script.welcome(row(1, "now", turn="t"), running=running("t"))
    chat.send("next")
    sent = script.wait_for("send")
    script.accept(sent, seq=None, status="waiting")
    expect(chat.page.locator(".cm-unsent .cm-note")).to_have_text("")
    chat.expect_rows("now", "next")
    assert script.saved_outbox() is None
    waiting = [{"turn": sent["client_id"], "text": "next"}]
    script.session(running=running("t"), waiting=waiting, last_seq=1, revision=1)
    expect(chat.page.locator(".cm-waiting .cm-text")).to_have_text("next")
    script.session(running=running("t"), last_seq=1, revision=2)  # cancelled elsewhere
    script.emit("synced", cursor="c2")
    chat.expect_rows("now")


@pytest.mark.long
def test_a_message_refused_by_a_full_queue_is_sent_after_a_turn_ends(scripted):
    script, chat = scripted
    script.welcome(row(1, "now", turn="t"), running=running("t"))
    chat.send("next")
    sent = script.wait_for("send")
    script.refuse(sent, "queue_full", retry=True, retry_after_ms=60_000)
    expect(chat.page.locator(".cm-unsent .cm-note")).to_contain_text("Waiting until it can be sent")
    script.session(last_seq=1, revision=1)
    assert script.wait_for("send")["client_id"] == sent["client_id"]


@pytest.mark.long
def test_a_client_selects_the_policy_for_a_message_during_a_turn(scripted):
    script, chat = scripted
    script.welcome(row(1, "now", turn="t"), running=running("t"))
    for policy in ("interrupt", "reject"):
        chat.client("client.send(arg, {ifBusy: arg})", policy)
        sent = script.wait_for("send")
        assert sent["if_busy"] == sent["text"] == policy
        if policy == "interrupt":
            script.accept(sent, seq=None, status="waiting")
    script.refuse(sent, "busy", retry=True, turn="t")
    expect(chat.page.locator(".cm-failed .cm-note")).to_contain_text("Not sent because")


def test_progress_is_shown_until_it_ends(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", turn="t"), running=running("t"))
    line = chat.page.locator(".cm-activity .cm-note")

    def report(kind: str, name: str, state: str) -> None:
        script.emit("delta", turn="t", step=0, event={"kind": kind, "name": name, "state": state})

    report("tool", "search", "started")
    report("tool", "weather\u202e", "at 50 %")
    expect(line).to_have_text("Using search… Using weather⟦U+202E⟧… at 50 %")
    report("tool", "search", "failed")
    report("tool", "weather\u202e", "ended")
    expect(line).to_have_text("Thinking…")
    report("thinking", "", "started")
    script.emit("snapshot", turn="t", step=0, text="It is")
    chat.expect_rows("hi", "It is")
    expect(line).to_have_count(0)
    report("thinking", "", "started")
    expect(line).to_have_text("Thinking…")
    script.emit("delta", turn="t", step=0, text=" warm")
    expect(line).to_have_count(0)
    chat.expect_rows("hi", "It is warm")


def test_a_question_is_marked_until_it_is_answered(scripted):
    script, chat = scripted
    asks = {"value": {"question": "Shall I?", "choices": ["Yes.", "No."]}}
    question = row(2, "Shall I?", turn="t", role="assistant", asks=asks)
    script.welcome(row(1, "Book it.", turn="t"), question)
    mark = chat.page.get_by_text("Waiting for your answer.")
    expect(mark).to_be_visible()
    expect(chat.box).to_have_attribute("placeholder", "Write your answer")
    chat.page.get_by_role("button", name="Yes.").click()
    sent = script.wait_for("send")
    assert sent["text"] == "Yes."
    expect(mark).to_have_count(0)
    script.emit("message", **row(3, "Yes.", client_id=sent["client_id"], turn="u"))
    script.session(last_seq=3, running=running("u"))
    script.accept(sent, seq=3)
    script.emit("synced", cursor="c2")
    expect(chat.page.locator("[data-seq='3'] .cm-text")).to_have_text("Yes.")
    expect(mark).to_have_count(0)


@pytest.mark.firefox
def test_the_answers_that_a_question_offers_are_in_view(scripted):
    script, chat = scripted
    chat.page.set_viewport_size({"width": 500, "height": 500})
    script.welcome(row(1, "Book it." + "\n" * 15, turn="t"), running=running("t"))
    expect(chat.page.get_by_text("Thinking…")).to_be_visible()
    asks = {"value": {"choices": [f"An answer of some words, number {n}" for n in range(1, 9)]}}
    script.emit("message", **row(2, "Which?", turn="t", role="assistant", asks=asks))
    script.session(last_seq=2, revision=1)
    expect(chat.page.get_by_role("button", name="number 8")).to_be_in_viewport(ratio=1)


@pytest.mark.regression
@pytest.mark.long
def test_the_answers_are_offered_whichever_import_ends_first(scripted):
    """Two drawings import the same module at once: Chromium ends them in any order."""
    asks = {"value": {"choices": ["Yes.", "No."]}}
    for _ in range(30):
        page = scripted[1].page.context.new_page()
        script = ScriptedServer(page)
        page.goto(SITE)
        script.welcome(row(1, "Book it.", turn="t"), running=running("t"))
        expect(page.get_by_text("Thinking…")).to_be_visible()
        script.emit("message", **row(2, "Shall I?", turn="t", role="assistant", asks=asks))
        script.session(last_seq=2, revision=1)
        expect(page.get_by_role("button", name="Yes.")).to_be_visible()
        page.close()


@pytest.mark.long
def test_delayed_updates_are_shown(scripted):
    script, chat = scripted
    script.welcome()
    script.session(revision=1, live=False)
    expect(chat.banner).to_contain_text("Live updates are delayed")
    script.session(revision=2, live=True)
    expect(chat.banner).to_be_hidden()


def replied(*texts: str) -> list[dict[str, Any]]:
    """Rows of questions and answers, alternating."""
    roles = ("user", "assistant")
    return [row(seq, text, role=roles[seq % 2 - 1]) for seq, text in enumerate(texts, 1)]


def test_an_edited_message_replaces_what_followed_it(scripted):
    script, chat = scripted
    chat.page.evaluate(
        "titles = []; addEventListener('chatmemory:title', (e) => titles.push(e.detail.title))"
    )
    script.welcome(*replied("one", "1", "two", "2"))
    chat.tool(1, "Edit").click()
    box = chat.page.get_by_role("textbox", name="Edit message")
    expect(box).to_have_value("one")
    box.fill("un")
    box.press("Enter")
    sent = script.wait_for("send")
    assert (sent["text"], sent["replaces"], sent["expect_seq"]) == ("un", 1, 3)
    chat.expect_rows("un")
    expect(chat.box).to_be_focused()
    script.accept(sent, seq=5)
    chat.expect_rows("un")
    script.emit("message", **row(5, "un", client_id=sent["client_id"]))
    expect(chat.page.locator("[data-seq='5'] .cm-text")).to_have_text("un")
    chat.expect_rows("un")
    script.session(last_seq=5, superseded=[[1, 4]], revision=1)
    script.emit("message", **row(6, "1!", role="assistant"))
    script.emit("synced", cursor="c2")
    chat.expect_rows("un", "1!")
    chat.tool(5, "Previous version").click()
    chat.expect_rows("one", "1", "two", "2")
    expect(chat.page.locator("[data-seq='1']")).to_contain_text("1 of 2")
    expect(chat.tool(1, "Next version")).to_be_focused()
    expect(chat.page.get_by_role("button", name=re.compile("Edit|Answer again"))).to_have_count(0)
    chat.page.keyboard.press("Enter")
    chat.expect_rows("un", "1!")
    expect(chat.tool(5, "Next version")).to_be_disabled()
    assert chat.page.evaluate("titles") == ["one", "un"]


@pytest.mark.long
@pytest.mark.regression
def test_another_answer_is_offered_when_the_start_of_a_long_turn_is_loaded(scripted):
    script, chat = scripted
    rows = [row(seq, "x\n" * 20, turn="t", role="assistant") for seq in range(2, 53)]
    script.welcome(*rows, last_seq=52)
    chat.tool(52, "Copy").wait_for()
    expect(chat.tool(52, "Answer again")).to_have_count(0)
    chat.page.locator(".cm-log").evaluate("log => { log.scrollTop = 0; }")
    fetch = script.wait_for("fetch")
    first = {"type": "message", **row(1, "one", turn="t", client_id="t")}
    script.emit("ok", id=fetch["id"], messages=[first])
    chat.tool(52, "Answer again").click()
    assert script.wait_for("send")["replaces"] == 1


@pytest.mark.long
def test_another_answer_is_requested_with_the_same_message(scripted):
    script, chat = scripted
    script.welcome(*replied("one", "1", "two", "2"))
    expect(chat.page.get_by_role("button", name="Answer again")).to_have_count(1)
    chat.tool(4, "Answer again").click()
    sent = script.wait_for("send")
    assert (sent["text"], sent["replaces"], sent["expect_seq"]) == ("two", 3, 3)
    chat.expect_rows("one", "1", "two")
    script.accept(sent, seq=5, duplicate=True)
    chat.expect_rows("one", "1", "two", "2")
    blocks = [{"type": "text", "text": "in"}, {"type": "text", "text": " parts"}]
    asked = {"content": blocks, "turn": "v", "client_id": "v"}
    script.emit("message", **row(5, "in parts", **asked))
    script.emit("message", **row(6, "put in by a graph", turn="v"))
    script.emit("message", **row(7, "3", role="assistant", turn="v"))
    script.session(last_seq=7, revision=1)
    expect(chat.tool(6, "Edit")).to_have_count(0)
    chat.tool(7, "Answer again").click()
    sent = script.wait_for("send")
    assert (sent["content"], "text" in sent) == (blocks, False)
    assert (sent["replaces"], sent["expect_seq"]) == (5, 6)


def test_a_refused_replacement_is_reported_and_replaces_nothing(scripted):
    script, chat = scripted
    script.welcome(*replied("one", "1"))
    chat.client("client.edit(1, 'un')")
    first = script.wait_for("send")
    script.emit("message", **row(3, "two"))
    script.refuse(first, "conflict")
    note = chat.page.locator(".cm-failed .cm-note")
    expect(note).to_contain_text("There is a newer message")
    chat.expect_rows("one", "1", "two", "un")
    note.get_by_role("button", name="Send again").click()
    again = script.wait_for("send")
    assert again["client_id"] != first["client_id"]
    assert (again["replaces"], again["expect_seq"]) == (1, 3)
    script.refuse(again, "busy", retry=True, turn="t")
    expect(note).to_contain_text("Not sent because another reply was in progress.")
    note.get_by_role("button", name="Send again").click()
    again = script.wait_for("send")
    script.refuse(again, "history_cleared")
    expect(note).to_contain_text("The history was cleared")
    note.get_by_role("button", name="Send again").click()
    last = script.wait_for("send")
    assert "replaces" not in last
    assert "expect_seq" not in last


@pytest.mark.long
def test_an_edit_can_be_cancelled_and_is_never_lost(scripted):
    script, chat = scripted
    script.welcome(*replied("one", "1"))
    box = chat.page.get_by_role("textbox", name="Edit message")
    chat.tool(1, "Edit").click()
    box.fill("   ")
    expect(chat.page.locator(".cm-changing").get_by_role("button", name="Send")).to_be_disabled()
    box.press("Enter")
    box.press("Escape")
    expect(box).to_have_count(0)
    expect(chat.tool(1, "Edit")).to_be_focused()
    chat.expect_rows("one", "1")
    chat.page.keyboard.press("Enter")
    box.fill("a better one")
    script.emit("message", **row(1, "", revision=1, redacted=True))
    expect(chat.box).to_have_value("a better one")
    expect(box).to_have_count(0)
    expect(chat.page.locator("[data-seq='1']").get_by_role("button")).to_have_count(0)
    assert script.frames == []


@pytest.mark.long
def test_versions_of_versions_are_found_and_loaded(scripted):
    script, chat = scripted
    texts = ("a", "A", "b", "B", "b2", "B2", "a2", "A2", "c", "C", "c2", "C2")
    rows = replied(*texts)
    head = {"superseded": [[3, 4], [1, 6], [9, 10]], "last_seq": 12}
    script.welcome(*rows[6:], **head)
    chat.expect_rows("a2", "A2", "c2", "C2")
    fetch = script.wait_for("fetch")
    assert fetch["before_seq"] == 7
    script.emit("ok", id=fetch["id"], messages=rows[4:6])
    fetch = script.wait_for("fetch")  # no row of these is shown
    script.emit("error", id=fetch["id"], code="unavailable", message="Later.", retry=True)
    chat.tool(7, "Previous version").click()
    fetch = script.wait_for("fetch")
    assert fetch["before_seq"] == 5
    script.emit("ok", id=fetch["id"], messages=rows[:4])
    chat.expect_rows("a", "A", "b2", "B2")
    chat.tool(5, "Previous version").click()
    chat.expect_rows("a", "A", "b", "B")
    chat.page.get_by_role("button", name="Show the newest version").click()
    chat.expect_rows("a2", "A2", "c2", "C2")
    chat.tool(11, "Previous version").click()
    chat.expect_rows("a2", "A2", "c", "C")
    chat.send("continues from the newest")
    chat.expect_rows("a2", "A2", "c2", "C2", "continues from the newest")


@pytest.mark.long
def test_silence_is_a_lost_socket(page):
    page.clock.install()
    script = ScriptedServer(page)
    page.goto(SITE)
    script.welcome()
    page.clock.fast_forward(44_000)
    assert len(script.sockets) == 1
    page.clock.fast_forward(2_000)
    page.clock.fast_forward(11_000)
    script.wait_for("hello")
    assert len(script.sockets) == 2


def test_enter_sends_and_shift_enter_starts_a_line(scripted):
    script, chat = scripted
    script.welcome()
    chat.box.press_sequentially("one")
    chat.box.press("Shift+Enter")
    chat.box.press_sequentially("two")
    chat.box.press("Enter")
    expect(chat.box).to_have_value("")
    assert script.wait_for("send")["text"] == "one\ntwo"


@pytest.mark.long
def test_invalid_messages_are_not_sent(scripted):
    script, chat = scripted
    script.welcome()
    button = chat.page.get_by_role("button", name="Send")
    for nothing in ("", "  \n", "\u200b\ufeff"):
        chat.box.fill(nothing)
        expect(button).to_be_disabled()
    chat.box.fill("\U0001f600" * 100)  # at the limit, with twice as many UTF-16 units
    expect(button).to_be_enabled()
    chat.box.fill("a" * 107)
    expect(button).to_be_disabled()
    expect(chat.page.locator(".cm-hint")).to_have_text("Too long by 7 characters")


def test_a_refused_message_can_be_edited(scripted):
    script, chat = scripted
    script.welcome()
    chat.send("bell \x07")
    sent = script.wait_for("send")
    script.emit("error", id=sent["id"], code="bad_text", message="No.", retry=False, field="text")
    note = chat.page.locator(".cm-failed .cm-note")
    expect(note).to_contain_text("characters that can't be stored")
    note.get_by_role("button", name="Edit").click()
    expect(chat.box).to_have_value("bell \x07")
    expect(note).to_be_hidden()


@pytest.mark.long
def test_a_frame_that_is_too_large_for_the_server_is_not_sent(scripted):
    script, chat = scripted
    script.welcome()
    chat.send("\x01" * 100)  # few characters, of six bytes each in JSON
    expect(chat.page.locator(".cm-failed .cm-note")).to_contain_text("too large")
    chat.send("after it")
    assert script.wait_for("send")["text"] == "after it"


@pytest.mark.long
def test_a_message_that_closed_the_socket_by_its_size_is_shown_as_too_large(scripted):
    script, chat = scripted
    script.welcome()
    chat.send("hi")
    script.wait_for("send")
    script.sockets[-1].close(code=1009)
    expect(chat.page.locator(".cm-failed .cm-note")).to_contain_text("too large")


def test_odd_text_leaves_the_page_usable(scripted):
    script, chat = scripted
    odd = "z" + "\u0301" * 10_000
    script.welcome(row(1, odd), row(2, "\uffff\ue000 👩\u200d👧 \u05e9\u05dc\u05d5\u05dd"))
    chat.send("still here")
    assert script.wait_for("send")["text"] == "still here"
    width = "document.documentElement.scrollWidth <= window.innerWidth"
    assert chat.page.evaluate(width)


@pytest.mark.long
def test_hidden_characters_are_shown_as_marks(scripted):
    script, chat = scripted
    script.welcome(row(1, "\u202ea \U000e0041\U000e0041 b"))
    chat.expect_rows("⟦U+202E⟧a ⟦U+E0041 \u00d72⟧ b")
