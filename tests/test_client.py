"""The chat page's part of the protocol, in a real browser, against a server that the test plays."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, WebSocketRoute, expect

import chatmemory
from tests import frames
from tests.browsers import Chat, launched

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SITE = "http://chat.test"
FILES = Path(chatmemory.__file__).parent / "static" / "chatmemory"
PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/chat.css">
<script type="module" src="/chat.js"></script>
<body class="cm-page cm-chatting">
<chat-memory url="/ws/chat/k/" session="k" create></chat-memory>"""


class Scripted:
    """The server's end of the socket, in the test's hands."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.sockets: list[WebSocketRoute] = []
        self.frames: list[dict[str, Any]] = []
        page.route_web_socket(re.compile("/ws/"), self._open)

    def _open(self, web_socket: WebSocketRoute) -> None:
        self.sockets.append(web_socket)
        web_socket.on_message(lambda text: self.frames.append(json.loads(text)))

    def say(self, kind: str, /, **fields: Any) -> None:
        """Send a frame as the server does."""
        frame = {"type": kind, **fields}
        frames.check("server", frame)
        self.sockets[-1].send(json.dumps(frame))

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The next frame of this type; those before it are left out."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            while self.frames:
                frame = self.frames.pop(0)
                frames.check("client", frame)
                if frame["type"] == kind:
                    return frame
            self.page.wait_for_timeout(20)
        pytest.fail(f"no frame {kind} came")

    def welcome(self, *messages: dict[str, Any], **session: Any) -> dict[str, Any]:
        """Answer a hello up to `synced`; return it."""
        hello = self.wait_for("hello")
        limits = {"max_message_chars": 100, "max_frame_bytes": 500}
        self.say("welcome", v=1, session={"key": "k", "title": ""}, limits=limits)
        for message in messages:
            self.say("message", **message)
        self.session(last_seq=len(messages), **session)
        self.say("synced", cursor="c1")
        return hello

    def session(self, **fields: Any) -> None:
        head = {"key": "k", "title": "", "epoch": 7, "first_seq": 1, "last_seq": 0, "revision": 0}
        more = {"archived": False, "superseded": [], "running": None, "waiting": []}
        self.say("session", **{**head, **more, **fields})


def row(seq: int, text: str, **fields: Any) -> dict[str, Any]:
    about = {"seq": seq, "revision": 0, "turn": None, "step": None, "client_id": None}
    said = {"role": "user", "status": "complete", "text": text, "content": None, "cut": False}
    more = {
        "error": "",
        "asks": None,
        "usage": None,
        "model": "",
        "created_at": "2026-01-01T00:00Z",
    }
    return {**about, **said, **more, "redacted": False, "quarantined": False, **fields}


@pytest.fixture(scope="module")
def launch() -> Iterator[Callable[[str], Browser]]:
    """Launches a browser, once for all tests here."""
    with ExitStack() as stack:
        yield cache(lambda chromium: stack.enter_context(launched(chromium)))


@pytest.fixture
def page(launch: Callable[[str], Browser], chromium: str) -> Iterator[Page]:
    """A tab at a site of nothing but our files."""
    with launch(chromium).new_context() as context:
        context.set_default_timeout(10_000)
        context.route(f"{SITE}/**", _serve)
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        assert errors == []


def _serve(route: Route) -> None:
    name = route.request.url.removeprefix(f"{SITE}/")
    if name:
        route.fulfill(path=FILES / name)
    else:
        route.fulfill(body=PAGE, content_type="text/html")


@pytest.fixture
def scripted(page: Page) -> tuple[Scripted, Chat]:
    """A page whose socket the test answers."""
    script = Scripted(page)
    page.goto(SITE)
    return script, Chat(page)


def running(turn: str) -> dict[str, Any]:
    return {"turn": turn, "status": "running", "since": None}


def test_a_ping_is_answered(scripted):
    script, _ = scripted
    script.welcome()
    script.say("ping", n=5)
    assert script.wait_for("pong")["n"] == 5


def test_text_is_set_by_a_snapshot_appended_by_deltas_and_ended_by_its_row(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", turn="t"), running=running("t"))
    expect(chat.page.get_by_text("Thinking…")).to_be_visible()
    script.say("snapshot", turn="t", step=0, text="Hel")
    script.say("delta", turn="t", step=0, text="lo 😀")
    chat.expect_rows("hi", "Hello 😀")
    script.say("snapshot", turn="t", step=0, text="Hello again")
    script.say("delta", turn="t", step=1, text="next")
    chat.expect_rows("hi", "Hello again", "next")
    script.say("message", **row(2, "Hello again!", turn="t", step=0, role="assistant"))
    chat.expect_rows("hi", "Hello again!", "next")
    script.session(last_seq=2, revision=1)
    chat.expect_rows("hi", "Hello again!")


def test_rows_are_replaced_by_newer_ones_and_go_with_the_floor_and_a_reset(scripted):
    script, chat = scripted
    script.welcome(row(1, "one"), row(2, "two"), row(3, "three", revision=2))
    script.say("message", **row(2, "", revision=4, redacted=True))
    script.say("message", **row(3, "older", revision=1))
    expect(chat.page.locator("[data-seq='2']")).to_contain_text("removed by an operator")
    script.session(first_seq=3, last_seq=3, revision=5)
    chat.expect_rows("three")
    script.session(first_seq=1, last_seq=3, revision=4, archived=True)
    script.say("message", **row(3, "three!", revision=6))
    chat.expect_rows("three!")
    expect(chat.box).to_be_enabled()
    script.say("reset", reason="cleared", epoch=8)
    script.say("message", **row(4, "four"))
    script.session(epoch=8, first_seq=4, last_seq=4)
    chat.expect_rows("four")


def test_a_change_of_a_row_that_is_not_here_leaves_no_hole(scripted):
    script, chat = scripted
    script.welcome(row(7, "seven"), row(8, "eight"))
    script.say("message", **row(3, "", revision=4, redacted=True))
    script.say("message", **row(8, "eight!", revision=5))
    chat.expect_rows("seven", "eight!")


def test_an_unacknowledged_message_is_sent_again_under_its_client_id(scripted):
    script, chat = scripted
    assert script.welcome()["create"] is True
    chat.send("once")
    first = script.wait_for("send")
    assert first["epoch"] == 7
    script.say("bye", code=4503, reason="restart", reconnect=True, after_ms=10)
    script.sockets[-1].close(code=4503)
    hello = script.welcome()
    assert hello["cursor"] == "c1"
    assert "create" not in hello
    again = script.wait_for("send")
    assert again["client_id"] == first["client_id"]
    assert again["id"] != first["id"]
    script.say("message", **row(1, "once", client_id=first["client_id"]))
    ok = {"turn": first["client_id"], "status": "running", "seq": 1, "duplicate": True}
    script.say("ok", id=again["id"], **ok)
    script.session(last_seq=1, revision=1)
    expect(chat.page.locator(".cm-unsent")).to_have_count(0)
    chat.expect_rows("once")


def test_a_message_is_tried_again_if_the_error_says_so_and_kept_if_not(scripted):
    script, chat = scripted
    script.welcome()
    chat.send("try")
    first = script.wait_for("send")
    about = {"code": "rate_limited", "message": "Later.", "retry": True, "retry_after_ms": 5}
    script.say("error", id=first["id"], **about)
    again = script.wait_for("send")
    assert again["client_id"] == first["client_id"]
    script.say("error", id=again["id"], code="history_cleared", message="Cleared.", retry=False)
    chat.page.get_by_role("button", name="Send again").click()
    assert script.wait_for("send")["client_id"] != first["client_id"]


def test_a_lost_socket_is_opened_again_until_it_works(scripted):
    script, chat = scripted
    script.welcome(row(1, "one"))
    for _ in range(3):
        script.sockets[-1].close(code=1011)
        script.wait_for("hello")
    script.sockets[-1].close(code=1012)
    script.welcome()
    chat.expect_live()
    chat.expect_rows("one")


@pytest.mark.parametrize(
    ("code", "sentence", "action"),
    [
        (4401, "You are signed out.", "Sign in"),
        (4404, "This chat was removed.", "Reload"),
        (4409, "This chat is open in too many places.", "Use it here"),
    ],
)
def test_a_final_goodbye_is_final(scripted, code, sentence, action):
    script, chat = scripted
    script.welcome()
    script.say("bye", code=code, reason="test", reconnect=False, after_ms=None)
    script.sockets[-1].close(code=code)
    expect(chat.banner).to_contain_text(sentence)
    expect(chat.banner.get_by_role("button", name=action)).to_be_visible()
    chat.page.wait_for_timeout(700)  # the first try would come within 500
    assert len(script.sockets) == 1


def test_a_waiting_turn_is_shown_and_can_be_cancelled(scripted):
    script, chat = scripted
    waiting = [{"turn": "w", "text": "later"}]
    script.welcome(row(1, "now", turn="t"), running=running("t"), waiting=waiting)
    note = chat.page.locator(".cm-unsent .cm-note")
    expect(note).to_contain_text("Waits for its turn.")
    note.get_by_role("button", name="Cancel").click()
    stop = script.wait_for("stop")
    assert stop["turn"] == "w"
    script.say("ok", id=stop["id"], turn="w", status="cancelled")


def test_silence_is_a_lost_socket(page):
    page.clock.install()
    script = Scripted(page)
    page.goto(SITE)
    script.welcome()
    page.clock.fast_forward(44_000)
    assert len(script.sockets) == 1
    page.clock.fast_forward(2_000)
    page.clock.fast_forward(11_000)
    script.wait_for("hello")
    assert len(script.sockets) == 2


# Writing


def test_enter_sends_and_shift_enter_begins_a_line(scripted):
    script, chat = scripted
    script.welcome()
    chat.box.press_sequentially("one")
    chat.box.press("Shift+Enter")
    chat.box.press_sequentially("two")
    chat.box.press("Enter")
    expect(chat.box).to_have_value("")
    assert script.wait_for("send")["text"] == "one\ntwo"


def test_what_cannot_be_sent_is_not_sent(scripted):
    script, chat = scripted
    script.welcome()
    button = chat.page.get_by_role("button", name="Send")
    for nothing in ("", "  \n", "\u200b\ufeff"):
        chat.box.fill(nothing)
        expect(button).to_be_disabled()
    chat.box.fill("\U0001f600" * 100)  # as many characters as are allowed, twice the units
    expect(button).to_be_enabled()
    chat.box.fill("a" * 107)
    expect(button).to_be_disabled()
    expect(chat.page.locator(".cm-hint")).to_have_text("Too long by 7 characters")


def test_a_refused_message_can_be_mended(scripted):
    script, chat = scripted
    script.welcome()
    chat.send("bell \x07")
    sent = script.wait_for("send")
    script.say("error", id=sent["id"], code="bad_text", message="No.", retry=False, field="text")
    note = chat.page.locator(".cm-failed .cm-note")
    expect(note).to_contain_text("characters that can't be kept")
    note.get_by_role("button", name="Edit").click()
    expect(chat.box).to_have_value("bell \x07")
    expect(note).to_be_hidden()


def test_a_frame_that_is_too_large_for_the_server_is_not_sent(scripted):
    script, chat = scripted
    script.welcome()
    chat.send("\x01" * 100)  # few characters, of six bytes each in JSON
    expect(chat.page.locator(".cm-failed .cm-note")).to_contain_text("too large")
    chat.send("after it")
    assert script.wait_for("send")["text"] == "after it"


def test_hidden_characters_are_shown_as_marks(scripted):
    script, chat = scripted
    script.welcome(row(1, "\u202ea \U000e0041\U000e0041 b"))
    chat.expect_rows("⟦U+202E⟧a ⟦U+E0041 \u00d72⟧ b")
