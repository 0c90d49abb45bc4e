"""The system's Chromium and Firefox, and a chat page in them."""

from __future__ import annotations

import re
from contextlib import ExitStack

from playwright.sync_api import Browser, Locator, Page, Playwright, expect, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # The page of another site, which a test serves, may reach a server on this machine.
    "--disable-features=LocalNetworkAccessChecks",
    # Only loopback is reached, and no other name is looked up: that can take seconds.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1",
)


TIMEOUT_MS = 20_000
"""How long to wait for an element: the defaults are short on a loaded machine."""

expect.set_options(timeout=TIMEOUT_MS)


ALLOW_QUERIES = "DJANGO_ALLOW_ASYNC_UNSAFE"
"""An environment variable: Django makes queries also in a thread that has a running event loop."""


class SharedBrowsers:
    """The browsers of consecutive tests, each launched once.

    While they run, this thread has a running event loop.
    """

    def __init__(self) -> None:
        self._running = ExitStack()
        self._browsers: dict[str, Browser] = {}

    def launch(self, path: str) -> Browser:
        if not self._browsers:
            self._playwright = self._running.enter_context(sync_playwright())
        if path not in self._browsers:
            self._browsers[path] = launch(self._playwright, path)
        return self._browsers[path]

    def close_contexts(self) -> None:
        for browser in self._browsers.values():
            for context in browser.contexts:
                # Otherwise the error of a request in flight would fail the next test.
                context.unroute_all(behavior="ignoreErrors")
                for page in context.pages:
                    page.unroute_all(behavior="ignoreErrors")
                context.close()

    def close(self) -> None:
        self._browsers.clear()
        self._running.close()


shared = SharedBrowsers()


def launch(playwright: Playwright, path: str) -> Browser:
    """Launch Chromium, or an unchanged Firefox over WebDriver BiDi."""
    if "firefox" in path:
        return playwright.firefox.launch(executable_path=path, channel="moz-firefox")
    return playwright.chromium.launch(executable_path=path, args=FLAGS)


SET_TEXT = """(box, text) => {
    box.value = text;
    box.dispatchEvent(new Event("input", {bubbles: true}));
}"""
"""As Playwright's `fill`, which types the line breaks of a text into Firefox as Enter."""


class Chat:
    """A tab with a session."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.box = page.get_by_role("textbox", name="Message", exact=True)
        self.rows = page.locator(".cm-row:not([data-empty])")
        self.banner = page.locator("chat-memory .cm-banner")
        self.stop = page.get_by_role("button", name="Stop")

    def text(self, text: str | re.Pattern[str]) -> Locator:
        """Return the message with this text."""
        return self.page.locator(".cm-text").get_by_text(text, exact=True)

    def send(self, text: str) -> None:
        self.box.evaluate(SET_TEXT, text)
        self.box.press("Enter")

    def tool(self, seq: int, name: str) -> Locator:
        """Return a button below a message."""
        return self.page.locator(f"[data-seq='{seq}'] .cm-tools").get_by_role("button", name=name)

    def client(self, statement: str, arg: object = None) -> None:
        """Run JavaScript in the page, with its `client` and this argument as `arg`."""
        chat = "document.querySelector('chat-memory')"
        self.page.evaluate(f"arg => {{ const {{client}} = {chat}; {statement}; }}", arg)

    def expect_live(self) -> None:
        expect(self.page.locator("chat-memory[data-state=live]")).to_be_attached()

    def expect_rows(self, *texts: str) -> None:
        expect(self.rows.locator(".cm-text")).to_have_text(list(texts))


def open_account(page: Page) -> Locator:
    """Open the menu of the account."""
    page.get_by_role("button", name="Account").click()
    menu = page.get_by_role("navigation", name="Account")
    expect(menu).to_be_visible()
    return menu
