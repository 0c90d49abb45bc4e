"""The pages in a real browser, with a policy that allows nothing inline."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.conf import settings
from django.test import Client

from chatmemory.statistics.models import DailyTurns
from tests.factories import make_user

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'"


@pytest.fixture
def login():
    """The cookie of a superuser."""
    client = Client()
    client.force_login(make_user("root", is_staff=True, is_superuser=True))
    return client.cookies[settings.SESSION_COOKIE_NAME].value


def send_policy(route):
    answer = route.fetch()
    headers = {**answer.headers, "content-security-policy": POLICY}
    route.fulfill(response=answer, headers=headers)


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1400, "light"),
        (390, "dark"),
        pytest.param(1400, "dark", marks=pytest.mark.long),
        pytest.param(390, "light", marks=pytest.mark.long),
    ],
)
def test_pages_fit_and_violate_no_policy(launch, chromium, live_server, login, scheme, width):
    for status in ("complete", "failed"):
        DailyTurns.objects.create(
            day=datetime.now(UTC).date(),
            model="m" * 100,
            status=status,
            error="model_error" if status == "failed" else "",
            turns=3,
            tokens_in=10**12,
            tokens_out=10**12,
            first_text={"861": 3},
            duration={"4871": 3},
        )
    problems = []
    browser = launch(chromium)
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    name = settings.SESSION_COOKIE_NAME
    context.add_cookies([{"name": name, "value": login, "url": live_server.url}])
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: line.type == "error" and problems.append(line.text))
    page.route("**/admin/chatmemory*/**", send_policy)
    page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
    for address in ("chatmemory_statistics/dailyturns/?days=7", "chatmemory/maintenance/"):
        page.goto(f"{live_server.url}/admin/{address}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.go_back()
    shapes = page.locator("svg.chatmemory-plot rect")
    assert shapes.count() == 2
    colors = shapes.evaluate_all("found => found.map(one => getComputedStyle(one).fill)")
    assert len(set(colors)) == 2
    assert "rgb(0, 0, 0)" not in colors
    page.get_by_text("As a table").first.click()
    page.get_by_role("region", name="Messages stored").wait_for()
    assert problems == []
