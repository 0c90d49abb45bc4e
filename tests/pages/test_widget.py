"""The element `<chat-memory>` in a page of a host, in a real browser."""

from __future__ import annotations

import gzip
import re
import time

import pytest
from playwright.sync_api import ConsoleMessage, Locator, Page, Route, expect

from tests.admin.screens import axe
from tests.blocks import block_with
from tests.browsers import TIMEOUT_MS, Chat
from tests.pages.test_chat_js import FILES, SITE, ScriptedServer, replied, row, running

pytestmark = [pytest.mark.browser, pytest.mark.slow]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "require-trusted-types-for 'script'; trusted-types chatmemory"
)
HOST_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>A host</title>
<link rel="stylesheet" href="/host.css"><script type="module" src="/element/chat.js"></script>
<main><h1>A host</h1><p>Text, <a href="/">a link</a> and <button>a button</button>.</p>
<div><chat-memory url="/ws/chat/k/"></chat-memory></div><p>The end.</p></main>"""
HOST_CSS = "html { font-size: 62.5%; color-scheme: dark } p { color: rgb(1, 2, 3) }"
STYLES = """() => [...document.querySelectorAll("html, body, body *")]
    .filter((node) => node.localName !== "chat-memory")
    .map((node) => [...getComputedStyle(node)].map(
        (name) => `${name}: ${getComputedStyle(node).getPropertyValue(name)}`).join("\\n"))"""
OWN_CHAT = """([person, key]) =>
    localStorage.setItem(`chatmemory:own:${person}::/ws/chat/`, JSON.stringify({key}))"""
"""Stores which chat the browser continues."""
LOOK = """() => {
    const host = document.querySelector("chat-memory");
    const {fontSize, colorScheme, backgroundColor} = getComputedStyle(host.shadowRoot.firstChild);
    return [fontSize, colorScheme, backgroundColor, host.clientHeight > 300];
}"""


@pytest.fixture
def host(launch, browser_path):
    """A tab of a host's site, which records errors and violations of its policy."""
    with launch(browser_path).new_context() as context:
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        problems: list[str] = []

        def record(line: ConsoleMessage) -> None:
            if line.type == "error":
                problems.append(line.text)

        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", record)
        yield page
        # Firefox asks for an icon of the host, which the host's policy blocks.
        assert [problem for problem in problems if "favicon.ico" not in problem] == []


def serve(
    page: Page, html: str, css: str, *, skip: str | None = None, policy: str = POLICY
) -> ScriptedServer:
    """Serve a host's page and the static files but `skip`, under a strict policy."""

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(f"{SITE}/")
        if name == "host.css":
            route.fulfill(body=css, content_type="text/css")
        elif name == skip:
            route.fulfill(status=404)
        elif name:
            route.fulfill(path=FILES / name)
        else:
            headers = {"Content-Security-Policy": policy, "Content-Type": "text/html"}
            route.fulfill(body=html, headers=headers)

    page.route(f"{SITE}/**", answer)
    script = ScriptedServer(page)
    page.goto(SITE)
    return script


def check_access(page: Page, within: str = "html") -> None:
    """Check what the selector finds by all rules of axe-core."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(axe())
    found = page.evaluate("within => axe.run(within).then(found => found.violations)", within)
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


@pytest.mark.firefox
def test_the_element_has_its_own_style_and_changes_nothing_of_its_page(host):
    without = HOST_PAGE.replace('<script type="module" src="/element/chat.js"></script>', "")
    without = without.replace("<chat-memory ", "<chat-memory hidden ")
    serve(host, without, HOST_CSS)
    host.evaluate("document.querySelector('chat-memory').remove()")
    plain = host.evaluate(STYLES)

    script = serve(host, HOST_PAGE, HOST_CSS)
    script.welcome(row(1, "A first message"), title="A title of the chat")
    chat = Chat(host)
    chat.expect_live()
    chat.expect_rows("A first message")
    assert host.evaluate(LOOK) == ["16px", "dark", "rgb(20, 22, 26)", True]
    assert host.title() == "A host"
    assert host.evaluate("document.activeElement.localName") == "body"
    assert host.evaluate("document.documentElement.getAttributeNames()") == ["lang"]
    host.evaluate("document.querySelector('chat-memory').style.display = 'none'")
    sizes = ("width", "height", "block-size", "inline-size", "perspective-origin")
    changed = [
        line
        for old, new in zip(plain, host.evaluate(STYLES), strict=True)
        for line in set(new.splitlines()) - set(old.splitlines())
        if not line.startswith(sizes)
    ]
    assert changed == []


@pytest.mark.regression
def test_a_nonce_is_enough_for_the_scripts(host):
    policy = POLICY.replace("script-src 'self'", "script-src 'nonce-n0nce' 'strict-dynamic'")
    html = HOST_PAGE.replace("<script ", '<script nonce="n0nce" ')
    script = serve(host, html, HOST_CSS, policy=policy)
    script.welcome(*replied("one", "1"))
    Chat(host).expect_rows("one", "1")
    expect(Chat(host).tool(1, "Edit")).to_be_visible()


@pytest.mark.long
def test_on_a_page_from_right_to_left_the_button_and_the_panel_are_at_the_left(host):
    html = HOST_PAGE.replace("<html", '<html dir="rtl"').replace("></chat", ' mode="button"></chat')
    serve(host, html, "")
    host.get_by_role("button", name="Chat").click()
    for name in (".cm-opener", ".cm-panel"):
        box = host.locator(name).bounding_box()
        assert box
        assert box["x"] == 16, name
    send = host.get_by_role("button", name="Send").bounding_box()
    text = host.get_by_role("textbox", name="Message").bounding_box()
    assert send["x"] < text["x"]


@pytest.mark.firefox
def test_a_button_opens_and_closes_the_chat(host):
    html = HOST_PAGE.replace("></chat", ' mode="button" label="Ask us"></chat')
    script = serve(host, html, "* { all: unset }")
    host.evaluate(
        """() => {
            window.seen = [];
            for (const name of ["toggle", "state", "message", "title"]) {
                const note = ({detail}) => seen.push(Object.values(detail).join(" "));
                document.body.addEventListener(`chatmemory:${name}`, note);
            }
        }"""
    )
    chat = Chat(host)
    button = host.get_by_role("button", name="Ask us", exact=True)
    panel = host.get_by_role("dialog", name="Ask us")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(panel).to_have_count(0)
    assert script.sockets == []  # no connection for a page view
    check_access(host)

    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(chat.box).to_be_focused()
    script.welcome(*replied("one", "1"))
    check_access(host)
    chat.tool(1, "Edit").click()
    expect(host.get_by_role("textbox", name="Edit message")).to_be_focused()
    host.keyboard.press("Escape")
    expect(panel).to_be_visible()  # the key left the form
    host.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    expect(button).to_be_focused()
    script.emit("message", **row(3, "three", revision=1))
    script.session(last_seq=3, revision=1)
    button.press("Enter")
    chat.expect_rows("one", "1", "three")
    host.get_by_role("button", name="Close").click()
    expect(button).to_be_focused()
    assert host.evaluate("seen.filter((one) => ['true', 'false'].includes(one))") == [
        *["true", "false", "true", "false"]
    ]
    others = host.evaluate("seen.filter((one) => !['true', 'false'].includes(one))")
    assert sorted(others) == ["3 user complete three", "connecting", "live", "one"]
    assert len(script.sockets) == 1


@pytest.mark.long
def test_messages_that_follow_a_reset_are_not_announced(host):
    script = serve(host, HOST_PAGE, HOST_CSS)
    script.welcome(*replied("one", "1"))
    Chat(host).expect_live()
    host.evaluate(
        "window.seen = [];"
        "document.addEventListener('chatmemory:message', ({detail}) => seen.push(detail.seq))"
    )
    script.emit("reset", reason="restored", epoch=8, lost=0)
    for message in replied("two", "2"):
        script.emit("message", **message)
    script.session(last_seq=2, epoch=8)
    script.emit("synced", cursor="c2")
    script.emit("message", **row(3, "three", revision=1))
    script.session(last_seq=3, revision=1, epoch=8)
    Chat(host).expect_rows("two", "2", "three")
    assert host.evaluate("seen") == [3]


BUTTON_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>A host</title>
<script type="module" src="/element/chat.js"></script>
<chat-memory sockets="/ws/chat/" api="/api/" mode="button" label="Ask us"></chat-memory>"""
MAX_FILES = 36
MAX_BYTES = 176 * 1024
MAX_GZIPPED_BYTES = 62 * 1024
"""Of the files, each compressed."""


def test_the_first_visit_of_a_visitor_loads_few_small_files(host):
    loaded: list[str] = []
    host.on("request", lambda request: loaded.append(request.url.removeprefix(f"{SITE}/")))
    serve(host, BUTTON_PAGE, "")
    host.get_by_role("button", name="Ask us").click()
    expect(Chat(host).box).to_be_focused()
    host.wait_for_load_state("networkidle")
    files = [FILES / name for name in loaded if name]
    assert {"chat.js", "chat.css", "widget.js", "widget.css"} <= {file.name for file in files}
    content = [file.read_bytes() for file in files]  # no calls of the API, which are no files
    assert len(files) <= MAX_FILES
    assert sum(map(len, content)) <= MAX_BYTES
    assert sum(len(gzip.compress(one)) for one in content) <= MAX_GZIPPED_BYTES


@pytest.mark.regression
def test_the_menu_of_an_inline_widget_covers_no_message(host):
    script = serve(host, HOST_PAGE, HOST_CSS)
    script.welcome(*replied("one", "1"))
    Chat(host).expect_rows("one", "1")
    menu = host.locator(".cm-menu")
    menu.evaluate("node => { node.hidden = false }")  # this host has given the session
    first, above = host.locator(".cm-row").first.bounding_box(), menu.bounding_box()
    assert first
    assert above
    assert first["y"] >= above["y"] + above["height"]


def test_a_page_sends_a_message_when_the_element_is_ready(host):
    host.add_init_script(
        'history.replaceState(null, "", "#delivery");'
        + block_with("docs/howto/widget.md", "chatmemory:ready").text
    )
    script = serve(host, HOST_PAGE, HOST_CSS)
    script.welcome()
    assert script.wait_for("send")["text"] == "What does delivery cost?"


def test_a_draft_in_a_widget_survives_a_reload(host):
    script = serve(host, HOST_PAGE, HOST_CSS)
    script.welcome()
    chat = Chat(host)
    chat.box.press_sequentially("half a thought")
    host.reload()
    script.welcome()
    expect(chat.box).to_have_value("half a thought")


@pytest.mark.long
def test_the_list_of_the_keys_closes_before_its_panel_and_with_it(host):
    html = HOST_PAGE.replace("></chat", ' mode="button" label="Ask us"></chat')
    script = serve(host, html, HOST_CSS)
    button = host.get_by_role("button", name="Ask us", exact=True)
    button.click()
    script.welcome(*replied("one", "1"))
    panel, keys = (
        host.get_by_role("dialog", name=name) for name in ("Ask us", "Keyboard shortcuts")
    )
    host.locator(".cm-log").press("?")
    expect(keys).to_be_visible()
    host.keyboard.press("Escape")
    expect(keys).to_have_count(0)
    expect(panel).to_be_visible()
    host.locator(".cm-log").press("?")
    expect(keys).to_be_visible()
    host.evaluate("document.querySelector('chat-memory').close()")
    expect(panel).to_have_count(0)
    host.get_by_role("button", name="a button").click()  # the page is not inert


def test_a_person_who_has_to_sign_in_is_told_so_at_once(host):
    attributes = 'sockets="/ws/chat/" signed-out login="#the-login"'
    html = HOST_PAGE.replace('url="/ws/chat/k/"', attributes)
    script = serve(host, html, HOST_CSS)
    host.evaluate(OWN_CHAT, ["", "of-a-visitor"])
    host.reload()
    chat = Chat(host)
    expect(chat.banner).to_contain_text("Sign in to chat.")
    expect(chat.box).to_be_hidden()
    expect(host.get_by_role("button", name="Options")).to_be_hidden()
    check_access(host, "chat-memory")
    chat.banner.get_by_role("button", name="Sign in").click()
    expect(host).to_have_url(re.compile("#the-login$"))
    assert script.sockets == []


@pytest.mark.long
def test_another_chat_begins_with_the_suggestions(host):
    element = """<chat-memory sockets="/ws/chat/" person="7"><div class="cm-suggestions" hidden>
        <button type="button">Where is my order?</button></div></chat-memory>"""
    html = re.sub("<chat-memory.*</chat-memory>", element, HOST_PAGE)
    script = serve(host, html, HOST_CSS)
    chat = Chat(host)
    options = host.get_by_role("button", name="Options")
    suggestion = host.get_by_role("button", name="Where is my order?")
    keys = []
    for _ in range(2):
        expect(options).to_be_hidden()  # there is nothing to leave
        suggestion.click()
        script.welcome()
        sent = script.wait_for("send")
        assert sent["text"] == "Where is my order?"
        question = row(1, sent["text"], client_id=sent["client_id"], turn=sent["client_id"])
        script.emit("message", **question)
        script.session(last_seq=1)
        script.accept(sent, seq=1)
        chat.expect_rows("Where is my order?")
        expect(suggestion).to_be_hidden()
        keys.append(script.sockets[-1].url)
        options.click()
        check_access(host, "chat-memory")
        host.keyboard.press("Escape")
        expect(options).to_be_focused()
        options.click()
        host.get_by_role("button", name="New chat").click()
        expect(chat.rows).to_have_count(0)
        expect(chat.box).to_be_focused()
    assert len(set(keys)) == len(script.sockets) == 2


def test_another_chat_sends_nothing_that_the_last_one_may_have_and_leaves_that_of_another_tab(host):
    html = HOST_PAGE.replace('url="/ws/chat/k/"', 'sockets="/ws/chat/" person="7"')
    script = serve(host, html, HOST_CSS)
    chat = Chat(host)
    chat.send("one")
    script.welcome()
    script.wait_for("send")  # it is never acknowledged
    chat.box.fill("two")
    host.evaluate(OWN_CHAT, ["7", "of-another-tab"])
    host.get_by_role("button", name="Options").click()
    host.get_by_role("button", name="New chat").click()
    expect(chat.rows).to_have_count(0)
    expect(chat.box).to_have_value("one\ntwo")
    host.wait_for_timeout(200)
    assert len(script.sockets) == 1


@pytest.mark.long
def test_the_focus_is_in_the_text_box_if_the_chat_ended_behind_its_menu(host):
    html = HOST_PAGE.replace('url="/ws/chat/k/"', 'sockets="/ws/chat/" person="7"')
    script = serve(host, html, HOST_CSS)
    chat = Chat(host)
    chat.send("one")
    script.welcome()
    script.accept(script.wait_for("send"), seq=1)
    script.emit("message", **row(1, "one"))
    script.session(last_seq=1)
    options = host.get_by_role("button", name="Options")
    options.click()
    script.sockets[-1].close(code=4404)
    expect(options).to_be_hidden()
    host.keyboard.press("Escape")
    expect(chat.box).to_be_focused()


def test_an_open_panel_takes_no_focus_and_fills_a_phone(host):
    host.set_viewport_size({"width": 390, "height": 700})
    script = serve(
        host,
        HOST_PAGE.replace("></chat", ' mode="button" open login="#the-login"></chat'),
        HOST_CSS,
    )
    script.welcome()
    panel = host.get_by_role("dialog", name="Chat")
    assert panel.bounding_box() == {"x": 0, "y": 0, "width": 390, "height": 700}
    assert host.evaluate("document.activeElement.localName") == "body"
    host.evaluate("document.querySelector('chat-memory').close()")
    expect(panel).to_have_count(0)
    assert host.evaluate("document.activeElement.localName") == "body"
    host.evaluate("document.querySelector('chat-memory').open()")
    expect(Chat(host).box).to_be_focused()
    script.emit("bye", code=4401, reason="logout", reconnect=False, after_ms=None)
    Chat(host).banner.get_by_role("button", name="Sign in").click()
    expect(host).to_have_url(re.compile("#the-login$"))


@pytest.mark.long
def test_without_a_stylesheet_the_chat_is_shown_and_the_console_names_it(launch, chromium):
    with launch(chromium).new_context() as context:
        page = context.new_page()
        lines: list[str] = []
        page.on("console", lambda line: lines.append(line.text))
        script = serve(page, HOST_PAGE, HOST_CSS, skip="widget/widget.css")
        script.welcome(row(1, "still readable"))
        Chat(page).expect_rows("still readable")
        assert any("stylesheet can't be loaded" in line for line in lines)


HOSTILE_CSS = """
html { font: italic 62.5%/3 serif; color-scheme: dark; text-transform: uppercase }
body { margin: 0; height: 4000px; letter-spacing: 3px; text-align: right; cursor: wait }
* { all: unset; box-sizing: content-box }
*, *::before, *::after { color: red; background: yellow; border: 3px solid green; margin: 7px }
button, textarea, [hidden], [class*="cm-"] { display: none }
article, h2, p, pre, table, svg { display: none !important; visibility: hidden !important }
[popover], [role] { position: static !important; z-index: -1 !important }
#box { display: flow-root; width: 600px; height: 5000px; border: 0; margin: 0; padding: 0; }
main { display: block }
"""
PLAIN_CSS = "body { margin: 0 } #box { width: 600px; height: 5000px }"
HOSTILE_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>A host</title>
<link rel="stylesheet" href="/host.css"><script type="module" src="/element/chat.js"></script>
<main id="box"><input id="name" autofocus></main><dialog></dialog>"""
ADD = """({key, scheme}) => {
    const made = document.createElement("chat-memory");
    made.setAttribute("url", `/ws/chat/${key}/`);
    made.setAttribute("color-scheme", scheme);
    made.style.margin = made.style.border = "0";
    (document.querySelector(":modal") ?? document.querySelector("main")).append(made);
}"""
INNER_STYLES = """() => {
    const root = document.querySelector("chat-memory").shadowRoot;
    return [...root.querySelectorAll("*")].flatMap((node) => {
        const style = getComputedStyle(node);
        const name = `${node.localName}.${node.getAttribute("class")}`;
        return [...style].map((key) => `${name} ${key}: ${style.getPropertyValue(key)}`);
    });
}"""
STATE = """() => [document.title, scrollY, document.activeElement.id, location.hash,
    document.documentElement.getAttributeNames().join(), history.length]"""
RICH = (
    '<p>See<a href="#m1-fn1" id="m1-fnref1" class="footnote-ref">1</a>.</p>'
    '<pre><code class="language-python"><span class="hl-keyword">pass</span></code></pre>'
    '<div class="table-scroll" tabindex="0"><table><tr><th>a<td>b</table></div>'
    '<ol class="footnotes"><li id="m1-fn1">A note.</li></ol>'
)


def add_widget(page: Page, script: ScriptedServer, scheme: str = "light") -> Locator:
    """Add a widget to the open dialog or to the page, and let it show a streamed reply."""
    number = page.locator("chat-memory").count()
    page.evaluate(ADD, {"key": f"k{number}", "scheme": scheme})
    step = {"turn": "t", "step": 0}
    script.welcome(row(1, "hi", turn="t", client_id="t"), running=running("t"))
    script.emit("snapshot", **step, text="See")
    script.emit("block", **step, start=0, end=3, html=RICH, last=True)
    widget = page.locator("chat-memory").nth(number)
    expect(widget.locator(".footnotes")).to_be_visible()
    script.emit("message", **row(2, "See", **step, role="assistant"))
    script.session(last_seq=2, revision=1)
    expect(widget.get_by_role("button", name="Answer again")).to_be_visible()
    expect(widget.locator("[data-state=live]")).to_be_attached()
    return widget


@pytest.mark.firefox
def test_no_style_of_a_hostile_page_reaches_the_widget_and_its_state_stays(host):
    script = serve(host, HOSTILE_PAGE, PLAIN_CSS)
    add_widget(host, script)
    plain = host.evaluate(INNER_STYLES)
    script = serve(host, HOSTILE_PAGE, HOSTILE_CSS)
    host.locator("#name").focus()
    host.evaluate("scrollTo(0, 300)")
    state, styles = host.evaluate(STATE), host.evaluate(STYLES)
    widget = add_widget(host, script)
    assert host.evaluate(STATE) == state == ["A host", 300, "name", "", "lang", state[-1]]
    assert host.evaluate(STYLES) == styles
    found = host.evaluate(INNER_STYLES)
    assert [new for old, new in zip(plain, found, strict=True) if old != new] == []

    second = add_widget(host, script, "dark")
    host.evaluate("document.querySelector('dialog').showModal()")
    third = add_widget(host, script)
    backgrounds = [
        one.locator(".cm-widget").evaluate("node => getComputedStyle(node).backgroundColor")
        for one in (widget, second, third)
    ]
    assert backgrounds == ["rgb(255, 255, 255)", "rgb(20, 22, 26)", "rgb(255, 255, 255)"]
    third.get_by_role("textbox").fill("in the dialog")
    third.get_by_role("button", name="Send").click()
    assert script.wait_for("send")["text"] == "in the dialog"
    third.get_by_role("link", name="1").click()
    assert host.evaluate(STATE)[3:] == state[3:]  # no address of the page, and no history
    assert third.evaluate("node => node.shadowRoot.activeElement.id") == "m1-fn1"
    expect(widget.locator(".cm-row")).to_have_count(2)
    check_access(host)


def wait_until(page: Page, condition: str) -> None:
    """Wait for a condition; Playwright's own function needs `unsafe-eval`."""
    until = time.monotonic() + 10
    while not page.evaluate(condition):
        assert time.monotonic() < until, condition
        page.wait_for_timeout(20)


COUNT = """() => {
    window.listeners = 0;
    window.sockets = [];
    window.timers = new Set();
    window.observers = new Set();
    for (const target of [window, document]) {
        const {addEventListener: add, removeEventListener: remove} = target;
        target.addEventListener = function (name, listener, options) {
            listeners += 1;
            options?.signal?.addEventListener("abort", () => { listeners -= 1; });
            return add.call(this, name, listener, options);
        };
        target.removeEventListener = function (...about) {
            listeners -= 1;
            return remove.apply(this, about);
        };
    }
    const {setTimeout: start, clearTimeout: stop} = window;
    window.setTimeout = (act, ...rest) => {
        const timer = start(() => { timers.delete(timer); act(); }, ...rest);
        timers.add(timer);
        return timer;
    };
    window.clearTimeout = (timer) => { timers.delete(timer); stop(timer); };
    const {WebSocket: Socket, ResizeObserver: Observer} = window;
    window.WebSocket = class extends Socket {
        constructor(...about) { super(...about); sockets.push(this); }
    };
    window.ResizeObserver = class extends Observer {
        observe(...about) { observers.add(this); super.observe(...about); }
        disconnect() { observers.delete(this); super.disconnect(); }
    };
    window.open = () => sockets.filter(({readyState}) => readyState <= WebSocket.OPEN).length;
    window.counts = () => [listeners, open(), timers.size, observers.size];
}"""


@pytest.mark.long
def test_removed_widgets_leave_nothing_behind_and_one_put_back_continues(host):
    script = serve(host, HOSTILE_PAGE, PLAIN_CSS)
    host.evaluate(COUNT)
    for _ in range(3):
        add_widget(host, script)
    listeners, sockets, timers, observers = host.evaluate("counts()")
    assert (sockets, observers) == (3, 3)
    assert listeners >= 3
    assert timers >= 3  # of silence
    host.evaluate("window.kept = document.querySelector('chat-memory')")
    host.evaluate(
        "window.gone = [...document.querySelectorAll('chat-memory')].map("
        "(node) => new WeakRef(node))"
    )
    host.evaluate("document.querySelector('main').replaceChildren()")
    wait_until(host, "counts().every((count) => count === 0)")

    host.evaluate("document.querySelector('main').append(kept)")
    assert script.wait_for("hello")["cursor"] == "c1"
    script.session(last_seq=2, revision=1)
    script.emit("synced", cursor="c2")
    Chat(host).expect_live()
    Chat(host).expect_rows("hi", re.compile("^See1"))
    assert host.evaluate("counts().map(Boolean)") == [True] * 4
    assert host.evaluate("[open(), observers.size, listeners]") == [1, 1, listeners // 3]
    host.evaluate("kept.remove(); kept = null; sockets.length = 0")
    wait_until(host, "counts().every((count) => count === 0)")
    host.context.new_cdp_session(host).send("HeapProfiler.collectGarbage")
    assert host.evaluate("gone.map((reference) => Boolean(reference.deref()))") == [False] * 3
