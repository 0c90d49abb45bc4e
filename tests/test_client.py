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
        self.passed: list[dict[str, Any]] = []
        """The frames that were left out before the last one that was waited for."""
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
        self.passed = []
        until = time.monotonic() + 10
        while time.monotonic() < until:
            while self.frames:
                frame = self.frames.pop(0)
                frames.check("client", frame)
                if frame["type"] == kind:
                    return frame
                self.passed.append(frame)
            self.page.wait_for_timeout(20)
        pytest.fail(f"no frame {kind} came")

    def welcome(self, *messages: dict[str, Any], **session: Any) -> dict[str, Any]:
        """Answer a hello up to `synced`; return it."""
        hello = self.wait_for("hello")
        limits = {"max_message_chars": 100, "max_frame_bytes": 500}
        self.say("welcome", v=1, session={"key": "k", "title": ""}, limits=limits)
        for message in messages:
            self.say("message", **message)
        self.session(**{"last_seq": len(messages), **session})
        self.say("synced", cursor="c1")
        return hello

    def accept(self, sent: dict[str, Any], **fields: Any) -> None:
        """Answer a send: it is in the database."""
        said = {"turn": sent["client_id"], "status": "running", "duplicate": False}
        self.say("ok", id=sent["id"], **{**said, **fields})

    def refuse(self, sent: dict[str, Any], code: str, **fields: Any) -> None:
        """Answer a send: it isn't."""
        self.say(
            "error", id=sent["id"], **{"code": code, "message": "No.", "retry": False, **fields}
        )

    def kept(self) -> str | None:
        """The messages that are kept in the tab until they are sent, as JSON."""
        found: str | None = self.page.evaluate("sessionStorage.getItem('chatmemory::/ws/chat/k/')")
        return found

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
    script.say("reset", reason="cleared", epoch=8, lost=0)
    script.say("message", **row(4, "four"))
    script.session(epoch=8, first_seq=4, last_seq=4, revision=9)
    chat.expect_rows("four")
    script.session(epoch=6, first_seq=5, last_seq=4, revision=0)  # another one, whatever its number
    expect(chat.rows).to_have_count(0)


@pytest.mark.regression
@pytest.mark.parametrize(
    ("lost", "notice"), [(2, "2 messages were lost"), (None, "Some messages were lost")]
)
def test_messages_that_the_server_lost_are_replaced_and_their_loss_is_shown(scripted, lost, notice):
    script, chat = scripted
    script.welcome(row(1, "one"), row(2, "lost"), row(3, "lost too"))
    chat.expect_rows("one", "lost", "lost too")
    script.say("reset", reason="diverged", epoch=8, lost=lost)
    script.say("message", **row(1, "one"))
    script.say("message", **row(2, "another"))
    script.session(epoch=8, last_seq=2)
    script.say("synced", cursor="c2")
    chat.expect_rows("one", "another")
    banner = chat.page.locator(".cm-banner")
    expect(banner).to_contain_text(notice)
    banner.get_by_role("button").click()
    expect(banner).to_be_hidden()
    chat.expect_rows("one", "another")


def test_a_changed_row_that_is_not_here_makes_no_hole(scripted):
    script, chat = scripted
    script.welcome(row(9, "nine"), row(10, "ten"), first_seq=3)
    script.say("message", **row(4, "changed", revision=5))
    script.say("message", **row(10, "ten!", revision=6))
    chat.expect_rows("nine", "ten!")
    fetch = script.wait_for("fetch")  # by itself, for there is room
    assert fetch["before_seq"] == 9
    script.say("reset", reason="restored", epoch=8, lost=0)
    script.say("ok", id=fetch["id"], messages=[row(8, "eight")])
    script.say("message", **row(20, "twenty"))
    script.session(epoch=8, first_seq=3, last_seq=20)
    chat.expect_rows("twenty")
    fetch = script.wait_for("fetch")
    script.say("ok", id=fetch["id"], messages=[])
    script.say("ping", n=1)
    script.wait_for("pong")
    assert script.passed == []  # nothing is there, whatever the session says


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


@pytest.mark.parametrize(("code", "after_ms"), [(4503, 60_000), (4429, None)])
def test_a_server_that_says_when_is_not_bothered_before(page, code, after_ms):
    page.clock.install()
    script = Scripted(page)
    page.goto(SITE)
    script.welcome()
    script.say("bye", code=code, reason="test", reconnect=True, after_ms=after_ms)
    expect(page.locator("chat-memory[data-state=waiting]")).to_be_attached()
    page.clock.set_system_time(0)  # somebody sets the clock back
    page.clock.run_for(2_000)
    page.evaluate("dispatchEvent(new Event('online'))")
    page.clock.run_for(10)
    assert len(script.sockets) == 1
    page.clock.run_for(after_ms or 10_000)
    script.wait_for("hello")
    assert len(script.sockets) == 2


def test_a_stop_that_was_lost_is_asked_again_as_long_as_the_turn_runs(scripted):
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
    script.say("ping", n=1)
    script.wait_for("pong")
    assert script.passed == []


TICKETS = """async () => {
    const {ChatMemoryClient} = await import("/chatmemory-client.js");
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


def test_each_connection_has_a_ticket_of_its_own(scripted):
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


# While a turn runs


def test_a_ticket_function_that_throws_at_once_ends_the_client_too(scripted):
    _, chat = scripted
    state = chat.page.evaluate(
        """async () => {
            const {ChatMemoryClient} = await import("/chatmemory-client.js");
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
    script.say("snapshot", turn="t", step=0, text="So")
    chat.expect_rows("now", "So", "later", "last")
    notes = chat.page.locator(".cm-waiting .cm-note")
    expect(notes).to_contain_text(["Waits for its turn.", "Waits for its turn."])
    notes.nth(1).get_by_role("button", name="Cancel").click()
    stop = script.wait_for("stop")
    assert stop["turn"] == "w2"
    expect(chat.stop).to_be_enabled()
    script.say("ok", id=stop["id"], turn="w2", status="cancelled")
    script.session(running=running("t"), waiting=waiting[:1], last_seq=1, revision=1)
    chat.expect_rows("now", "So", "later")


def test_a_message_stays_until_its_row_or_its_turn_is_here(scripted):
    script, chat = scripted
    script.welcome(row(1, "now", turn="t"), running=running("t"))
    chat.send("next")
    sent = script.wait_for("send")
    script.accept(sent, seq=None, status="waiting")
    expect(chat.page.locator(".cm-unsent .cm-note")).to_have_text("")
    chat.expect_rows("now", "next")
    assert script.kept() is None
    waiting = [{"turn": sent["client_id"], "text": "next"}]
    script.session(running=running("t"), waiting=waiting, last_seq=1, revision=1)
    expect(chat.page.locator(".cm-waiting .cm-text")).to_have_text("next")
    script.session(running=running("t"), last_seq=1, revision=2)  # cancelled elsewhere
    script.say("synced", cursor="c2")
    chat.expect_rows("now")


def test_what_a_full_queue_refuses_is_sent_once_there_is_room(scripted):
    script, chat = scripted
    script.welcome(row(1, "now", turn="t"), running=running("t"))
    chat.send("next")
    sent = script.wait_for("send")
    script.refuse(sent, "queue_full", retry=True, retry_after_ms=60_000)
    expect(chat.page.locator(".cm-unsent .cm-note")).to_contain_text("Waits until it can be sent")
    script.session(last_seq=1, revision=1)
    assert script.wait_for("send")["client_id"] == sent["client_id"]


def test_one_says_what_becomes_of_a_message_while_a_turn_runs(scripted):
    script, chat = scripted
    script.welcome(row(1, "now", turn="t"), running=running("t"))
    for policy in ("interrupt", "reject"):
        chat.client("client.send(arg, {ifBusy: arg})", policy)
        sent = script.wait_for("send")
        assert sent["if_busy"] == sent["text"] == policy
        if policy == "interrupt":
            script.accept(sent, seq=None, status="waiting")
    script.refuse(sent, "busy", retry=True, turn="t")
    expect(chat.page.locator(".cm-failed .cm-note")).to_contain_text("Not sent, for another reply")


def test_progress_is_shown_until_it_ends(scripted):
    script, chat = scripted
    script.welcome(row(1, "hi", turn="t"), running=running("t"))
    line = chat.page.locator(".cm-activity .cm-note")

    def tell(kind: str, name: str, state: str) -> None:
        script.say("delta", turn="t", step=0, event={"kind": kind, "name": name, "state": state})

    tell("tool", "search", "started")
    tell("tool", "weather\u202e", "at 50 %")
    expect(line).to_have_text("Using search… Using weather⟦U+202E⟧… at 50 %")
    tell("tool", "search", "failed")
    tell("tool", "weather\u202e", "ended")
    expect(line).to_have_text("Thinking…")
    tell("thinking", "", "started")
    script.say("snapshot", turn="t", step=0, text="It is")
    chat.expect_rows("hi", "It is")
    expect(line).to_have_count(0)
    tell("thinking", "", "started")
    expect(line).to_have_text("Thinking…")
    script.say("delta", turn="t", step=0, text=" warm")
    expect(line).to_have_count(0)
    chat.expect_rows("hi", "It is warm")


def test_a_question_is_marked_until_it_is_answered(scripted):
    script, chat = scripted
    asks = {"value": {"question": "Shall I?", "choices": ["Yes.", "No."]}}
    question = row(2, "Shall I?", turn="t", role="assistant", asks=asks)
    script.welcome(row(1, "Book it.", turn="t"), question)
    mark = chat.page.get_by_text("Waits for your answer.")
    expect(mark).to_be_visible()
    expect(chat.box).to_have_attribute("placeholder", "Write your answer")
    chat.page.get_by_role("button", name="Yes.").click()
    sent = script.wait_for("send")
    assert sent["text"] == "Yes."
    expect(mark).to_have_count(0)
    script.say("message", **row(3, "Yes.", client_id=sent["client_id"], turn="u"))
    script.session(last_seq=3, running=running("u"))
    script.accept(sent, seq=3)
    script.say("synced", cursor="c2")
    expect(chat.page.locator("[data-seq='3'] .cm-text")).to_have_text("Yes.")
    expect(mark).to_have_count(0)


def test_late_updates_are_told(scripted):
    script, chat = scripted
    script.welcome()
    script.session(revision=1, live=False)
    expect(chat.banner).to_contain_text("Live updates are late")
    script.session(revision=2, live=True)
    expect(chat.banner).to_be_hidden()


# Editing, and versions


def replied(*texts: str) -> list[dict[str, Any]]:
    """Turns of these questions and answers."""
    roles = ("user", "assistant")
    return [row(seq, text, role=roles[seq % 2 - 1]) for seq, text in enumerate(texts, 1)]


def test_an_edited_message_replaces_what_followed_it(scripted):
    script, chat = scripted
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
    script.say("message", **row(5, "un", client_id=sent["client_id"]))
    expect(chat.page.locator("[data-seq='5'] .cm-text")).to_have_text("un")
    chat.expect_rows("un")
    script.session(last_seq=5, superseded=[[1, 4]], revision=1)
    script.say("message", **row(6, "1!", role="assistant"))
    script.say("synced", cursor="c2")
    chat.expect_rows("un", "1!")
    chat.tool(5, "Previous version").click()
    chat.expect_rows("one", "1", "two", "2")
    expect(chat.page.locator("[data-seq='1']")).to_contain_text("1 of 2")
    expect(chat.tool(1, "Next version")).to_be_focused()
    expect(chat.page.get_by_role("button", name=re.compile("Edit|Answer again"))).to_have_count(0)
    chat.page.keyboard.press("Enter")
    chat.expect_rows("un", "1!")
    expect(chat.tool(5, "Next version")).to_be_disabled()


def test_a_reply_is_asked_for_again_with_the_same_message(scripted):
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
    script.say("message", **row(5, "in parts", **asked))
    script.say("message", **row(6, "put in by a graph", turn="v"))
    script.say("message", **row(7, "3", role="assistant", turn="v"))
    script.session(last_seq=7, revision=1)
    expect(chat.tool(6, "Edit")).to_have_count(0)
    chat.tool(7, "Answer again").click()
    sent = script.wait_for("send")
    assert (sent["content"], "text" in sent) == (blocks, False)
    assert (sent["replaces"], sent["expect_seq"]) == (5, 6)


def test_a_refused_replacement_says_so_and_what_it_would_replace_is_still_there(scripted):
    script, chat = scripted
    script.welcome(*replied("one", "1"))
    chat.client("client.edit(1, 'un')")
    first = script.wait_for("send")
    script.say("message", **row(3, "two"))
    script.refuse(first, "conflict")
    note = chat.page.locator(".cm-failed .cm-note")
    expect(note).to_contain_text("The conversation went on meanwhile")
    chat.expect_rows("one", "1", "two", "un")
    note.get_by_role("button", name="Send again").click()
    again = script.wait_for("send")
    assert again["client_id"] != first["client_id"]
    assert (again["replaces"], again["expect_seq"]) == (1, 3)
    script.refuse(again, "busy", retry=True, turn="t")
    expect(note).to_contain_text("Not sent, for another reply was being written.")
    note.get_by_role("button", name="Send again").click()
    again = script.wait_for("send")
    script.refuse(again, "history_cleared")
    expect(note).to_contain_text("The history was cleared")
    note.get_by_role("button", name="Send again").click()
    last = script.wait_for("send")
    assert "replaces" not in last
    assert "expect_seq" not in last


def test_a_change_can_be_left_and_is_never_lost(scripted):
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
    script.say("message", **row(1, "", revision=1, redacted=True))
    expect(chat.box).to_have_value("a better one")
    expect(box).to_have_count(0)
    expect(chat.page.locator("[data-seq='1']").get_by_role("button")).to_have_count(0)
    assert script.frames == []


def test_versions_of_versions_are_found_and_loaded(scripted):
    script, chat = scripted
    texts = ("a", "A", "b", "B", "b2", "B2", "a2", "A2", "c", "C", "c2", "C2")
    rows = replied(*texts)
    head = {"superseded": [[3, 4], [1, 6], [9, 10]], "last_seq": 12}
    script.welcome(*rows[6:], **head)
    chat.expect_rows("a2", "A2", "c2", "C2")
    fetch = script.wait_for("fetch")
    assert fetch["before_seq"] == 7
    script.say("ok", id=fetch["id"], messages=rows[4:6])
    fetch = script.wait_for("fetch")  # still nothing that is shown
    script.say("error", id=fetch["id"], code="unavailable", message="Later.", retry=True)
    chat.tool(7, "Previous version").click()
    fetch = script.wait_for("fetch")
    assert fetch["before_seq"] == 5
    script.say("ok", id=fetch["id"], messages=rows[:4])
    chat.expect_rows("a", "A", "b2", "B2")
    chat.tool(5, "Previous version").click()
    chat.expect_rows("a", "A", "b", "B")
    chat.page.get_by_role("button", name="Back to the newest").click()
    chat.expect_rows("a2", "A2", "c2", "C2")
    chat.tool(11, "Previous version").click()
    chat.expect_rows("a2", "A2", "c", "C")
    chat.send("goes on from the newest")
    chat.expect_rows("a2", "A2", "c2", "C2", "goes on from the newest")


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


def test_hidden_characters_are_shown_as_marks(scripted):
    script, chat = scripted
    script.welcome(row(1, "\u202ea \U000e0041\U000e0041 b"))
    chat.expect_rows("⟦U+202E⟧a ⟦U+E0041 \u00d72⟧ b")
