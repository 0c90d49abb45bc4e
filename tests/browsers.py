"""The system's Chromium, and a chat page in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

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


# The default of 5 s is short on a loaded machine.
expect.set_options(timeout=20_000)


@contextmanager
def launched(chromium: str) -> Iterator[Browser]:
    """Launch a browser.

    While it runs, its event loop occupies this thread, in which Django then refuses queries.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


class Chat:
    """A tab with a session."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.box = page.get_by_role("textbox", name="Message", exact=True)
        self.rows = page.locator(".cm-row:not([data-empty])")
        self.banner = page.locator(".cm-banner")
        self.stop = page.get_by_role("button", name="Stop")

    def text(self, text: str | re.Pattern[str]) -> Locator:
        """Return the message with this text."""
        return self.page.locator(".cm-text").get_by_text(text, exact=True)

    def send(self, text: str) -> None:
        self.box.fill(text)
        self.box.press("Enter")

    def tool(self, seq: int, name: str) -> Locator:
        """Return a button below a message."""
        return self.page.locator(f"[data-seq='{seq}'] .cm-tools").get_by_role("button", name=name)

    def client(self, act: str, arg: object = None) -> None:
        """Run JavaScript in the page, with its `client` and this argument as `arg`."""
        chat = "document.querySelector('chat-memory')"
        self.page.evaluate(f"arg => {{ const {{client}} = {chat}; {act}; }}", arg)

    def expect_live(self) -> None:
        expect(self.page.locator("chat-memory[data-state=live]")).to_be_attached()

    def expect_rows(self, *texts: str) -> None:
        expect(self.rows.locator(".cm-text")).to_have_text(list(texts))
