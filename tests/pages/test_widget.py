"""The element `<chat-memory>` in a page of a host, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import ConsoleMessage, Page, Route, expect

from tests.admin.screens import axe
from tests.browsers import Chat
from tests.pages.test_chat_js import FILES, SITE, ScriptedServer, launch, replied, row

__all__ = ["launch"]

pytestmark = [pytest.mark.browser, pytest.mark.slow]

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
HOST_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>A host</title>
<link rel="stylesheet" href="/host.css"><script type="module" src="/chat.js"></script>
<main><h1>A host</h1><p>Text, <a href="/">a link</a> and <button>a button</button>.</p>
<div><chat-memory url="/ws/chat/k/" create></chat-memory></div><p>The end.</p></main>"""
HOST_CSS = "html { font-size: 62.5%; color-scheme: dark } p { color: rgb(1, 2, 3) }"
STYLES = """() => [...document.querySelectorAll("html, body, body *")]
    .filter((node) => node.localName !== "chat-memory")
    .map((node) => [...getComputedStyle(node)].map(
        (name) => `${name}: ${getComputedStyle(node).getPropertyValue(name)}`).join("\\n"))"""
LOOK = """() => {
    const host = document.querySelector("chat-memory");
    const {fontSize, colorScheme, backgroundColor} = getComputedStyle(host.shadowRoot.firstChild);
    return [fontSize, colorScheme, backgroundColor, host.clientHeight > 300];
}"""


@pytest.fixture
def host(launch, chromium):
    """A tab of a host's site, which records errors and violations of its policy."""
    with launch(chromium).new_context() as context:
        context.set_default_timeout(10_000)
        page = context.new_page()
        problems: list[str] = []

        def record(line: ConsoleMessage) -> None:
            if line.type == "error":
                problems.append(line.text)

        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", record)
        yield page
        assert problems == []


def serve(page: Page, html: str, css: str, *, skip: str | None = None) -> ScriptedServer:
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
            headers = {"Content-Security-Policy": POLICY, "Content-Type": "text/html"}
            route.fulfill(body=html, headers=headers)

    page.route(f"{SITE}/**", answer)
    script = ScriptedServer(page)
    page.goto(SITE)
    return script


def check_access(page: Page) -> None:
    """Check the page by all rules of axe-core."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(axe())
    found = page.evaluate("axe.run().then(({violations}) => violations)")
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


def test_the_element_has_its_own_style_and_changes_nothing_of_its_page(host):
    without = HOST_PAGE.replace('<script type="module" src="/chat.js"></script>', "")
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


def test_a_button_opens_and_closes_the_chat(host):
    html = HOST_PAGE.replace("create>", 'create mode="button" label="Ask us">')
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
    assert host.evaluate("seen") == [
        *["true", "connecting", "live", "one"],
        *["false", "3 user complete three", "true", "false"],
    ]
    assert len(script.sockets) == 1


def test_an_open_panel_takes_no_focus_and_fills_a_phone(host):
    host.set_viewport_size({"width": 390, "height": 700})
    script = serve(host, HOST_PAGE.replace("create>", 'create mode="button" open>'), HOST_CSS)
    script.welcome()
    panel = host.get_by_role("dialog", name="Chat")
    assert panel.bounding_box() == {"x": 0, "y": 0, "width": 390, "height": 700}
    assert host.evaluate("document.activeElement.localName") == "body"
    host.evaluate("document.querySelector('chat-memory').close()")
    expect(panel).to_have_count(0)
    assert host.evaluate("document.activeElement.localName") == "body"
    host.evaluate("document.querySelector('chat-memory').open()")
    expect(Chat(host).box).to_be_focused()


def test_without_a_stylesheet_the_chat_is_shown_and_the_console_names_it(launch, chromium):
    with launch(chromium).new_context() as context:
        page = context.new_page()
        lines: list[str] = []
        page.on("console", lambda line: lines.append(line.text))
        script = serve(page, HOST_PAGE, HOST_CSS, skip="widget.css")
        script.welcome(row(1, "still readable"))
        Chat(page).expect_rows("still readable")
        assert any("stylesheet can't be loaded" in line for line in lines)
