"""The element `<chat-memory>` in a page of a host, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import ConsoleMessage, Page, Route

from tests.browsers import Chat
from tests.pages.test_chat_js import FILES, SITE, ScriptedServer, launch, row

__all__ = ["launch"]

pytestmark = [pytest.mark.browser, pytest.mark.slow]

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
HOST_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>A host</title>
<link rel="stylesheet" href="/host.css"><script type="module" src="/chat.js"></script>
<h1>A host</h1><p>Text, <a href="/">a link</a> and <button>a button</button>.</p>
<div><chat-memory url="/ws/chat/k/" create></chat-memory></div><p>The end.</p>"""
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


def serve(page: Page, html: str, css: str) -> ScriptedServer:
    """Serve a host's page and the static files, under a strict policy."""

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(f"{SITE}/")
        if name == "host.css":
            route.fulfill(body=css, content_type="text/css")
        elif name:
            route.fulfill(path=FILES / name)
        else:
            headers = {"Content-Security-Policy": POLICY, "Content-Type": "text/html"}
            route.fulfill(body=html, headers=headers)

    page.route(f"{SITE}/**", answer)
    script = ScriptedServer(page)
    page.goto(SITE)
    return script


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
