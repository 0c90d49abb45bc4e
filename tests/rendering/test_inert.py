"""Rendered payloads in a real browser, without the Content-Security-Policy of our pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page

from chatmemory.rendering.markdown import MarkdownStream, markdown
from tests.payloads import ELSEWHERE, PAYLOADS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

RECORD = "window.ran = []; window.alert = text => { window.ran.push(text); };"
LINKS = "links => links.map(link => link.protocol)"


class Visit:
    """A page that shows HTML, and records the requests and scripts of that HTML."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.requested: list[str] = []
        page.add_init_script(RECORD)
        page.on("request", lambda request: self.requested.append(request.url))
        page.goto("about:blank")

    def show(self, *htmls: str) -> list[object]:
        """Show these parts together; return what their scripts passed to `alert`."""
        self._page.set_content("".join(f"<article>{html}</article>" for html in htmls))
        self._page.wait_for_load_state("networkidle")
        ran: list[object] = self._page.evaluate("window.ran")
        return ran

    def protocols(self) -> set[str]:
        """Return the protocols of all links, as the browser reads them."""
        return {*self._page.locator("a[href]").evaluate_all(LINKS)}


@pytest.fixture
def visit(launch: Callable[[str], Browser], chromium: str) -> Visit:
    return Visit(launch(chromium).new_page())


def streamed(text: str) -> str:
    stream = MarkdownStream(prefix="x-")
    return "".join([block for char in text for block in stream.feed(char)] + stream.close())


def test_no_payload_runs_a_script_or_loads_anything(visit):
    for render in (markdown, streamed):
        assert visit.show(*map(render, PAYLOADS)) == []
        assert visit.requested == []
        # Those of this page, and of addresses that no browser opens.
        assert visit.protocols() <= {"http:", "https:", "mailto:", "about:", ":"}


def test_what_is_not_rendered_runs_loads_and_leads_to_scripts(visit):
    assert visit.show(*PAYLOADS[:4]) == [1, 1, 1]
    assert any(ELSEWHERE in url for url in visit.requested)
    visit.show(PAYLOADS[6])
    assert visit.protocols() == {"javascript:"}
