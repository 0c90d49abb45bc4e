"""The chat pages while the static files are on another origin."""

from __future__ import annotations

import pytest
from django.conf import settings
from playwright.sync_api import expect

from tests.browsers import Chat
from tests.factories import make_user
from tests.proxies import FILES, nginx
from tests.servers import sign_in, start_servers

__all__ = ["start_servers"]

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.regression]

ACCENT = "() => getComputedStyle(document.body).getPropertyValue('--cm-accent')"


def test_all_pages_work_with_static_files_on_another_origin(
    start_servers, launch, chromium, tmp_path
):
    person = sign_in(make_user("ann"))
    allowed = "add_header Access-Control-Allow-Origin *;"
    locations = f"location /static/ {{ alias {FILES}/; {allowed} }}"
    with nginx(tmp_path, locations) as files, launch(chromium).new_context() as context:
        [server] = start_servers(env={"STATIC_URL": f"{files}/static/"})
        problems: list[str] = []
        context.on("console", lambda line: line.type == "error" and problems.append(line.text))
        page = context.new_page()
        page.goto(f"{server.address}/accounts/login/")
        assert page.evaluate(ACCENT)
        name = settings.SESSION_COOKIE_NAME
        context.add_cookies([{"name": name, "value": person.cookie, "url": server.address}])
        page.goto(f"{server.address}/chat/~new/")
        chat = Chat(page)
        chat.send("**one**")
        chat.expect_rows("**one**", "one")
        chat.tool(2, "Good reply").click()  # its module and stylesheet are loaded now
        expect(page.get_by_role("textbox", name="What was good?")).to_be_focused()
        page.goto(f"{server.address}/shop/")
        page.get_by_role("button", name="Ask us").click()
        chat.send("two")
        chat.expect_rows("two", "two")
        assert problems == []
