"""A project below a URL prefix, behind a proxy that keeps the prefix or strips it."""

from __future__ import annotations

import uuid

import pytest
from django.conf import settings

from tests.browsers import Chat
from tests.factories import make_user
from tests.proxies import FILES, nginx
from tests.servers import sign_in, start_servers

__all__ = ["start_servers"]

ROOT_PATH = "--root-path /app"
KEPT, STRIPPED = "/app/", "/"
"""The path of the application, for the proxy."""


@pytest.mark.regression
@pytest.mark.long
@pytest.mark.browser
@pytest.mark.parametrize(
    ("program", "arguments", "target"),
    [
        ("uvicorn", "", KEPT),
        ("uvicorn", "", STRIPPED),
        ("uvicorn", ROOT_PATH, STRIPPED),  # it adds the root path itself
        ("daphne", "", KEPT),
        ("daphne", ROOT_PATH, KEPT),
        ("daphne", ROOT_PATH, STRIPPED),
    ],
)
def test_page_and_widget_chat_below_a_prefix(
    start_servers, launch, chromium, tmp_path, program, arguments, target
):
    person = sign_in(make_user("ann"))
    env = {"STATIC_URL": "/app/static/", **({} if arguments else {"FORCE_SCRIPT_NAME": "/app"})}
    [server] = start_servers(program=program, arguments=arguments, env=env)
    proxied = f"location /app/ {{ proxy_pass {server.address}{target}; }}"
    locations = f"{proxied} location /app/static/ {{ alias {FILES}/; }}"
    with nginx(tmp_path, locations) as address, launch(chromium).new_context() as context:
        cookie = {"name": settings.SESSION_COOKIE_NAME, "value": person.cookie, "url": address}
        context.add_cookies([cookie])
        page = context.new_page()
        page.goto(f"{address}/app/chat/~new/")
        chat = Chat(page)
        chat.send("on the page")
        chat.expect_rows("on the page", "on the page")
        page.goto(f"{address}/app/shop/")
        page.get_by_role("button", name="Ask us").click()
        chat.send("in the widget")
        chat.expect_rows("in the widget", "in the widget")


@pytest.mark.regression
@pytest.mark.django_db
def test_the_address_of_the_socket_begins_with_the_prefix(client, url_prefix):
    client.force_login(make_user("ann"))
    key = str(uuid.uuid4())
    page = client.get(f"/chat/{key}/").content.decode()
    shop = client.get("/shop/").content.decode()
    assert f'url="{url_prefix}ws/chat/{key}/"' in page
    assert f'sockets="{url_prefix}ws/chat/"' in shop
