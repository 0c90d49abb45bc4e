"""The bot of the demo, and the suggestions on the page of a new chat."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from chatmemory.errors import ModelUnavailable
from chatmemory.models import Session
from chatmemory.responders import Progress
from project import demo_bot, demo_suggestions
from tests.browsers import TIMEOUT_MS, Chat
from tests.conftest import database_environment
from tests.factories import make_user
from tests.servers import Server, sign_in

TOLD = {"role": "user", "content": "hello"}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    for name in ("WORD_SECONDS", "FAST_SECONDS", "STEP_SECONDS", "THINKING_SECONDS"):
        monkeypatch.setattr(demo_bot, name, 0)


async def said(*messages):
    """Return what the bot yields after these messages; a text is one by the user."""
    plain = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    return [piece async for piece in demo_bot.answer(plain, Session(key="talk"))]


def text_of(pieces):
    return "".join(piece for piece in pieces if isinstance(piece, str))


async def test_the_story_and_the_rich_reply_are_streamed_in_many_pieces():
    story = await said(demo_suggestions.STORY)
    assert len(story) > 400
    assert text_of(story) == demo_bot.STORY
    assert text_of(await said(demo_suggestions.RICH)) == demo_bot.RICH


async def test_each_tool_has_a_name_arguments_and_a_result():
    pieces = await said(demo_suggestions.TOOL)
    calls = [c for p in pieces if isinstance(p, dict) for c in p.get("tool_calls", [])]
    results = [p for p in pieces if isinstance(p, dict) and p["role"] == "tool"]
    assert [call["name"] for call in calls] == ["find_place", "forecast"]
    assert all(call["args"] for call in calls)
    assert [call["id"] for call in calls] == [result["tool_call_id"] for result in results]
    assert json.loads(results[1]["content"]) == demo_bot.FORECAST
    assert "sunny" in text_of(pieces)


async def test_a_choice_answers_the_question_and_other_messages_do_not():
    [question] = await said(demo_suggestions.QUESTION)
    assert question["asks"]["interrupts"][0]["value"]["choices"] == demo_bot.TIMES
    assert "**19:30**" in text_of(await said(TOLD, question, "19:30"))
    assert "**19:30**" not in text_of(await said(TOLD, question, "19:30", TOLD, "19:30"))


async def test_the_slow_reply_thinks_first_and_the_failing_one_keeps_its_text():
    thought = await said(demo_suggestions.SLOW)
    assert [piece.state for piece in thought[:2]] == ["started", "ended"]
    assert isinstance(thought[0], Progress)
    assert thought[-1]["content"][0]["reasoning"] == demo_bot.THOUGHTS
    assert thought[-1]["content"][1]["text"] == text_of(thought)
    with pytest.raises(ModelUnavailable):
        await said(demo_suggestions.ERROR)


async def test_other_messages_are_answered_as_by_the_demo_model():
    pieces = await said(demo_suggestions.MEMORY)
    assert "**Anna Weber**" in text_of(pieces)
    assert "**Rex**" in text_of(await said(demo_suggestions.MEMORY, "what's my dog called?"))


@pytest.mark.django_db
def test_the_page_of_a_new_chat_has_the_suggestions_as_text(client, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SUGGESTIONS": ["Where is <my> order?"]}
    client.force_login(make_user())
    page = client.get(client.get("/chat/~new/").url).content.decode()
    assert '<button type="button" dir="auto">Where is &lt;my&gt; order?</button>' in page
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SUGGESTIONS": []}
    assert (
        "cm-suggestions"
        not in client.get("/chat/11111111-2222-4333-8444-555555555555/").content.decode()
    )


@pytest.fixture
def server(transactional_db, tmp_path) -> Iterator[Server]:
    server = Server(
        database_environment(),
        tmp_path / "log",
        RESPONDER="project.demo_bot.answer",
        SUGGESTIONS=demo_suggestions.SUGGESTIONS,
    )
    yield server
    server.kill()


@pytest.fixture
def person(transactional_db):
    return sign_in()


@pytest.fixture
def browser(launch: Callable[[str], Browser], chromium: str) -> Browser:
    return launch(chromium)


def new_chat(browser: Browser, server: Server, person) -> Chat:
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    context.add_cookies([{"name": "sessionid", "value": person.cookie, "url": server.address}])
    page = context.new_page()
    page.goto(f"{server.start().address}/chat/~new/")
    return Chat(page)


def choose(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


@pytest.mark.browser
@pytest.mark.long
def test_the_suggestions_start_each_kind_of_reply(server, browser, person):
    chat = new_chat(browser, server, person)
    page = chat.page
    expect(page.get_by_role("group", name="Suggestions").get_by_role("button")).to_have_count(7)
    choose(page, demo_suggestions.STORY)
    expect(chat.box).to_be_focused()
    expect(page.locator(".cm-suggestions")).to_be_hidden()
    expect(page.locator("[aria-busy] .cm-text")).to_contain_text("The lamp")
    chat.stop.click()
    expect(page.locator(".cm-note", has_text="Stopped before the end")).to_be_visible()
    chat.send(demo_suggestions.QUESTION)
    choose(page, "19:30")
    expect(page.locator(".cm-assistant strong", has_text="19:30")).to_be_visible()
    chat.send(demo_suggestions.TOOL)
    expect(page.locator(".cm-activity")).to_contain_text(re.compile("find_place|forecast"))
    expect(page.locator(".cm-assistant strong", has_text="sunny")).to_be_visible()
    chat.send(demo_suggestions.ERROR)
    expect(page.locator(".cm-failed .cm-note")).to_have_text(
        "The model is not available. Try again in a moment."
    )
    chat.send(demo_suggestions.SLOW)
    expect(page.locator(".cm-activity")).to_contain_text("Thinking…")
    chat.stop.click()


@pytest.mark.browser
@pytest.mark.slow
def test_a_suggestion_works_with_the_keyboard(server, browser, person):
    chat = new_chat(browser, server, person)
    chat.page.get_by_role("button", name=demo_suggestions.MEMORY).focus()
    chat.page.keyboard.press("Enter")
    chat.expect_rows(demo_suggestions.MEMORY, re.compile("Nice to meet you, Anna Weber"))
