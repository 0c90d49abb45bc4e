"""The examples of docs/examples in Chromium, built and served by Vite in front of a server."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from django.conf import global_settings
from playwright.sync_api import expect

from chatmemory.models import Turn
from tests.factories import make_user
from tests.front_ends.conftest import BOT
from tests.front_ends.node import EXAMPLES, node_or_skip
from tests.front_ends.stored import expected
from tests.servers import free_port, is_listening, wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.redis,
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]

NAMES = ["react-ai-sdk", "vue-ai-sdk", "svelte-ai-sdk", "tanstack-ai", "plain-sse"]
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
def server(start_once, redis_url):
    [server] = start_once(redis_url=redis_url, RESPONDER=BOT, LEASE=3)
    return server.start()


class Preview:
    """Vite, which serves the built example and passes Django's paths to the server."""

    def __init__(self, command, cwd, server):
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--strictPort"]
        self.command = [*command, *place]
        self.options = {"cwd": cwd, "env": {**os.environ, "DJANGO": server.address}}

    def start(self):
        self.process = subprocess.Popen(self.command, **self.options)  # noqa: S603  # our own
        wait_for(lambda: is_listening(self.port), "Vite does not start")

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def preview(server, example, vite):
    command, folder = vite
    preview = Preview([*command, "preview", "--outDir", folder], example, server)
    preview.start()
    yield preview
    preview.kill()


@pytest.fixture
def page(preview, launch, chromium, settings):
    """The example's page, after the user has signed in."""
    settings.PASSWORD_HASHERS = global_settings.PASSWORD_HASHERS  # as in the server
    make_user("ann")
    page = launch(chromium).new_context().new_page()
    page.goto(preview.address)
    page.get_by_label("Username").fill("ann")
    page.get_by_label("Password").fill("secret")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(f"^{preview.address}/#"))
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
    """The page shows each stored text once, in order, as soon as its client has rendered it."""
    _, _, key = page.url.partition("#")
    texts = [part[1] for shown in expected(key) for part in shown.parts if part[0] == "text"]
    wait_for(lambda: not wrong_text(page, texts), f"not shown: {texts}")


def wrong_text(page, texts):
    """Return what is missing in the page or follows the texts; nothing if it shows them."""
    found = words(" ".join(page.locator("article").all_inner_texts()))
    for text in map(words, texts):
        _, text_found, found = found.partition(text)
        if not text_found:
            return text
    return found if set(found) & set("0123456789") else ""


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
    send(page, "count 200")
    expect(replies(page)).to_contain_text("1 2 3 4 5")
    send(page, "Good evening")
    expect(page.locator("main")).to_contain_text("Waiting")
    expect(replies(page).last).to_contain_text("Good evening")
    assert_shown(page)


def test_messages_that_wait_are_answered_after_a_reload(page, example):
    if example.name == "tanstack-ai":
        pytest.skip("the client of TanStack AI keeps waiting messages in the page")
    send(page, "count 300")
    for number, text in enumerate(("Good evening", "Good night"), start=2):
        send(page, text)
        wait_for(lambda number=number: Turn.objects.count() == number, "it is not stored")
    page.reload()
    expect(page.locator("main")).to_contain_text("Waiting")
    expect(replies(page).last).to_contain_text("Good night")
    expect(replies(page)).to_have_count(3)
    assert_shown(page)


def test_a_message_is_edited(page, example):
    if example.name != "svelte-ai-sdk":
        pytest.skip("only one example shows it")
    send(page, "Good morning")
    expect(replies(page)).to_contain_text("Good morning")
    page.get_by_role("button", name="Edit").click()
    send(page, "Good night")
    expect(replies(page)).to_contain_text("Good night")
    expect(page.locator("article")).to_have_count(2)
    assert_shown(page)
    page.reload()
    expect(replies(page)).to_contain_text("Good night")
    assert_shown(page)
    assert Turn.objects.count() == 2


def test_a_reply_continues_after_a_restart_of_the_server(page, server, example):
    send(page, "endless")
    expect(replies(page)).to_contain_text("word " * 100)  # 2 s: a part of it is saved each second
    server.kill()
    server.start()
    wait_for(Turn.objects.filter(status="interrupted").exists, "the turn does not end")
    if example.name == "tanstack-ai":  # its client shows the error, and continues after a reload
        expect(page.get_by_role("alert")).to_be_visible()
        page.reload()
        expect(replies(page)).to_contain_text("word")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    assert_shown(page)


def test_a_reply_continues_after_lost_connections(page, preview, example):
    send(page, "count 200")
    expect(replies(page)).to_contain_text("1 2 3 4 5")
    preview.kill()
    wait_for(lambda: Turn.objects.get().status == "complete", "the turn does not end")
    preview.start()
    if example.name == "tanstack-ai":
        page.reload()
    expect(replies(page)).to_contain_text("198 199 200")
    assert_shown(page)
