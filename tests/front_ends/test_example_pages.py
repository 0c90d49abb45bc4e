"""The examples of docs/examples in Chromium, built and served by Vite in front of a server."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import nullcontext

import pytest
from django.conf import global_settings
from playwright.sync_api import expect

from chatmemory.models import Turn
from tests.factories import make_user
from tests.front_ends.conftest import BOT
from tests.front_ends.node import EXAMPLES, node_or_skip
from tests.front_ends.stored import expected
from tests.servers import free_port, is_listening, start_servers, wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.redis,
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]

start = start_servers
NAMES = ["react-ai-sdk", "vue-ai-sdk", "tanstack-ai", "plain-sse"]
COUNTED = " ".join(map(str, range(1, 81)))


@pytest.fixture(params=NAMES, scope="module")
def example(request):
    return EXAMPLES / request.param


@pytest.fixture(scope="module")
def vite(example, tmp_path_factory):
    """The command of Vite, and the folder of the built example."""
    command = [node_or_skip(example), "node_modules/vite/bin/vite.js"]
    folder = str(tmp_path_factory.mktemp("built") / "dist")
    build = [*command, "build", "--outDir", folder, "--emptyOutDir"]
    env = {**os.environ, "VITE_API": "/api"}
    subprocess.run(build, cwd=example, env=env, check=True, capture_output=True)  # noqa: S603
    return command, folder


@pytest.fixture
def server(start, redis_url):
    [server] = start(redis_url=redis_url, RESPONDER=BOT)
    return server


@pytest.fixture
def address(server, example, vite):
    """The address of the built example; Vite passes Django's paths to the server."""
    command, folder = vite
    port = free_port()
    place = ["--outDir", folder, "--host", "127.0.0.1", "--port", str(port), "--strictPort"]
    env = {**os.environ, "DJANGO": server.address}
    process = subprocess.Popen([*command, "preview", *place], cwd=example, env=env)  # noqa: S603
    try:
        wait_for(lambda: is_listening(port), "Vite does not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def page(address, launch, chromium, settings):
    """The example's page, after the user has signed in."""
    settings.PASSWORD_HASHERS = global_settings.PASSWORD_HASHERS  # as in the server
    make_user("ann")
    page = launch(chromium).new_context().new_page()
    page.goto(address)
    page.get_by_label("Username").fill("ann")
    page.get_by_label("Password").fill("secret")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(f"^{address}/#"))
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    return page


def send(page, text):
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()


def replies(page):
    return page.locator("article[data-role=assistant]")


def words(text):
    return " ".join(text.split())


def assert_shown(page):
    """The page shows each stored text once, in order."""
    _, _, key = page.url.partition("#")
    texts = [part[1] for shown in expected(key) for part in shown.parts if part[0] == "text"]
    found = words(" ".join(page.locator("article").all_inner_texts()))
    for text in map(words, texts):
        before, text_found, found = found.partition(text)
        assert text_found, f"{text!r} is missing after {before!r}"
    assert not set(found) & set("0123456789"), f"{found!r} follows"


def test_a_new_chat_is_empty(page, example):
    if "ai-sdk" in example.name:
        with page.expect_response("**/stream") as resumed:
            page.reload()
        assert resumed.value.status == 204
    expect(replies(page)).to_have_count(0)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_reply_continues_after_a_reload_and_one_is_stopped(page):
    send(page, "count 80")
    expect(replies(page)).to_contain_text("1 2 3 4 5")
    page.reload()
    expect(replies(page)).to_contain_text(COUNTED)
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    send(page, "endless")
    expect(replies(page).last).to_contain_text("word word word")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    assert [turn.status for turn in Turn.objects.order_by("pk")] == ["complete", "interrupted"]
    assert_shown(page)
    page.reload()
    expect(replies(page).last).to_contain_text("word word word")
    assert_shown(page)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_tools_and_failures_are_shown(page):
    send(page, "weather")
    expect(replies(page).last).to_contain_text("It rains.")
    expect(page.locator("main")).to_contain_text("rain")
    send(page, "fail")
    expect(page.locator("main")).to_contain_text("So far,")
    assert_shown(page)


def test_a_message_that_waits_is_answered(page):
    send(page, "count 80")
    expect(replies(page)).to_contain_text("1 2 3 4 5")
    send(page, "Good evening")
    expect(page.locator("main")).to_contain_text("Waiting")
    expect(replies(page).last).to_contain_text("Good evening")
    assert_shown(page)


def test_a_reply_continues_after_a_restart_of_the_server(page, server, example):
    send(page, "endless")
    expect(replies(page)).to_contain_text("word word word")
    server.kill()
    server.start()
    wait_for(Turn.objects.filter(status="interrupted").exists, "the turn does not end")
    if example.name == "tanstack-ai":  # its client shows the error, and continues after a reload
        expect(page.get_by_role("alert")).to_be_visible()
        page.reload()
        expect(replies(page)).to_contain_text("word")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    assert_shown(page)


def test_a_reply_continues_after_the_network_was_away(page, example):
    send(page, "count 200")
    expect(replies(page)).to_contain_text("1 2 3 4 5")
    is_reported = example.name != "plain-sse"  # Chromium reports no failure of an EventSource
    with page.expect_event("requestfailed") if is_reported else nullcontext():
        page.context.set_offline(True)
    wait_for(lambda: Turn.objects.get().status == "complete", "the turn does not end")
    page.context.set_offline(False)
    if example.name == "tanstack-ai":
        page.reload()
    expect(replies(page)).to_contain_text("198 199 200")
    assert_shown(page)
