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
from project import demo_bot, demo_languages, demo_suggestions, demo_topics
from tests.browsers import TIMEOUT_MS, Chat
from tests.conftest import database_environment
from tests.factories import make_user
from tests.first_messages import FIRST_MESSAGES
from tests.servers import Server, sign_in

TOLD = {"role": "user", "content": "hello"}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    for name in ("WORD_SECONDS", "FAST_SECONDS", "STEP_SECONDS", "THINKING_SECONDS"):
        monkeypatch.setattr(demo_bot, name, 0)


async def replies_to(*messages):
    """Return what the bot yields after these messages; a text is one by the user."""
    plain = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    return [piece async for piece in demo_bot.answer(plain, Session(key="talk"))]


def text_of(pieces):
    return "".join(piece for piece in pieces if isinstance(piece, str))


async def test_the_story_and_the_rich_reply_are_streamed_in_many_pieces():
    story = await replies_to(demo_suggestions.STORY)
    assert len(story) > 400
    assert text_of(story) == demo_bot.STORY
    assert text_of(await replies_to(demo_suggestions.RICH)) == demo_bot.RICH


async def test_each_tool_has_a_name_arguments_and_a_result():
    pieces = await replies_to(demo_suggestions.TOOL)
    calls = [c for p in pieces if isinstance(p, dict) for c in p.get("tool_calls", [])]
    results = [p for p in pieces if isinstance(p, dict) and p["role"] == "tool"]
    assert [call["name"] for call in calls] == ["find_place", "forecast"]
    assert all(call["args"] for call in calls)
    assert [call["id"] for call in calls] == [result["tool_call_id"] for result in results]
    assert json.loads(results[1]["content"]) == demo_bot.FORECAST
    assert "sunny" in text_of(pieces)


async def test_a_choice_answers_the_question_and_other_messages_do_not():
    [question] = await replies_to(demo_suggestions.QUESTION)
    assert question["asks"]["interrupts"][0]["value"]["choices"] == demo_bot.TIMES
    assert "**19:30**" in text_of(await replies_to(TOLD, question, "19:30"))
    assert "**19:30**" not in text_of(await replies_to(TOLD, question, "19:30", TOLD, "19:30"))


async def test_the_slow_reply_thinks_first_and_the_failing_one_keeps_its_text():
    thought = await replies_to(demo_suggestions.SLOW)
    assert [piece.state for piece in thought[:2]] == ["started", "ended"]
    assert isinstance(thought[0], Progress)
    assert thought[-1]["content"][0]["reasoning"] == demo_bot.THOUGHTS
    assert thought[-1]["content"][1]["text"] == text_of(thought)
    with pytest.raises(ModelUnavailable):
        await replies_to(demo_suggestions.ERROR)


@pytest.mark.parametrize("suggestion", demo_suggestions.SHOP)
async def test_the_bot_knows_the_suggestions_of_the_shop(suggestion):
    text = text_of(await replies_to(suggestion))
    assert text
    assert "did not understand" not in text
    assert "can't help" not in text


async def test_the_bot_remembers_what_people_say():
    pieces = await replies_to(demo_suggestions.MEMORY)
    assert "**Anna Weber**" in text_of(pieces)
    assert "**Rex**" in text_of(await replies_to(demo_suggestions.MEMORY, "what's my dog called?"))
    told = "Where is my order 48213?"
    assert "**48213**" in text_of(await replies_to(told, "What is my order number?"))


@pytest.mark.parametrize(("asked", "subject"), FIRST_MESSAGES)
async def test_the_bot_names_what_it_cannot_do(asked, subject):
    assert [topic.name for topic in demo_topics.find_topics(asked)] == [subject]
    reply = text_of(await replies_to(asked))
    assert reply.startswith(f"Sorry, I can't help with {subject}: ")
    assert demo_topics.ABILITIES in reply


TOPICS = {
    "identity": ["Who are you?", "are you a bot", "Are you a real person?", "What's your name?"],
    "person": [
        "I want to talk to a person",
        "Can I speak with someone from support?",
        "I don't want to talk to a bot!",
        "Is anybody there?",
    ],
    "complaint": [
        "My lamp arrived broken.",
        "I want to complain",
        "You sent me the wrong item, I want a refund",
        "The lamp doesn\u2019t work",
        "I'm very unhappy with this.",
    ],
    "change of an order": ["cancel my order please", "Can I change the delivery address?"],
    "order": [
        "Where is my order 48213?",
        "order status",
        "I want to track my package",
        "When will my parcel arrive?",
        "my order is late",
        "My order has not arrived yet",
    ],
    "delivery": ["How much is shipping?", "Do you deliver to Norway?", "delivery"],
    "returns": ["Can I send it back?", "How do I return something?", "I want my money back"],
    "opening hours": ["When are you open?", "opening hours?", "Are you open on Sunday?"],
    "products": ["What do you sell?", "How much is the desk lamp?", "Do you have notebooks?"],
    "payment": ["Can I pay by card?", "Do you accept PayPal"],
    "discounts": ["Do you have a promo code?"],
    "abilities": ["What can you do?", "help", "Can you help me?"],
    "thanks": ["thanks!", "Thank you very much", "ok"],
    "goodbye": ["bye", "Good night"],
    "greeting": ["hi", "Hello there", "Good morning!", "How are you?"],
}


@pytest.mark.parametrize("topic", TOPICS)
def test_the_bot_finds_the_topic_of_a_message(topic):
    for asked in TOPICS[topic]:
        assert [found.name for found in demo_topics.find_topics(asked)] == [topic], asked
        assert demo_languages.find_language(asked) is None


def test_each_topic_has_an_example():
    groups = (demo_topics.FIRST, demo_topics.FACTS, demo_topics.SMALL_TALK)
    assert [topic.name for group in groups for topic in group] == [*TOPICS]


async def test_several_questions_are_answered_in_one_reply():
    reply = text_of(await replies_to("When are you open, and what does delivery cost?"))
    assert "**Opening hours**" in reply
    assert "**Delivery**" in reply


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("Hi, my name is Anna Weber. When are you open?", "**Opening hours**"),
        ("I am Anna Weber and I need a bus.", "help with buses"),
        ("My name is Anna Weber, where is my order 48213?", "Order **48213**"),
    ],
)
async def test_a_name_and_a_question_in_one_message_are_both_answered(asked, expected):
    reply = text_of(await replies_to(asked))
    assert reply.startswith("Nice to meet you, **Anna Weber**. ")
    assert expected in reply


async def test_the_status_of_an_order_is_looked_up_by_a_tool():
    call, *_, result = [
        p for p in await replies_to("Where is order 48213?") if not isinstance(p, str)
    ]
    assert call["tool_calls"][0]["args"] == {"order": "48213"}
    assert json.loads(result["content"])["order"] == "48213"


async def test_without_a_number_the_bot_asks_for_the_order():
    [question] = await replies_to("Where is my order?")
    asked = {"role": "assistant", "content": question}
    assert "Order **48213**" in text_of(await replies_to("Where is my order?", asked, "it's 48213"))
    assert "Order **48213**" in text_of(
        await replies_to("I ordered #48213.", TOLD, "order status?")
    )
    assert text_of(await replies_to("Where is my order?", asked, "no idea")) == demo_topics.UNKNOWN


async def test_a_wish_for_a_person_opens_a_ticket():
    call, *_ = await replies_to("Can I talk to a person?")
    assert call["tool_calls"][0]["name"] == "create_ticket"
    assert demo_bot.TICKET in text_of(await replies_to("Can I talk to a person?"))


async def test_a_table_can_be_booked_in_other_words():
    [question] = await replies_to("Can you book a table for me?")
    assert question["content"] == demo_bot.WHEN


@pytest.mark.parametrize(
    ("language", "asked"),
    [
        ("de", "Hallo"),
        ("de", "Wo ist meine Bestellung 48213?"),
        ("fr", "Bonjour, quand êtes-vous ouverts ?"),
        ("es", "Hola, ¿cuánto cuesta el envío?"),
        ("it", "Buongiorno, dove è il mio pacco?"),
        ("pt", "Olá, onde está a minha encomenda?"),
        ("nl", "Waar is mijn bestelling?"),
        ("pl", "Dzień dobry, gdzie jest moja paczka?"),
        ("ja", "配送料はいくらですか"),
        ("zh", "你好,我的包裹在哪里?"),
        ("ru", "Здравствуйте, где мой заказ?"),
    ],
)
async def test_other_languages_get_a_greeting_with_the_topics(language, asked):
    assert text_of(await replies_to(asked)) == demo_languages.REPLIES[language]


def test_each_language_has_an_example_and_names_the_same_facts():
    for reply in demo_languages.REPLIES.values():
        assert {"50", "30", "18", "16"} <= set(re.findall(r"\d+", reply))


async def test_what_the_bot_does_not_know_it_says():
    assert text_of(await replies_to("The moon is quite large.")) == demo_topics.UNKNOWN
    assert demo_topics.ABILITIES in demo_topics.UNKNOWN


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


RECORD_ACTIVITY = """() => {
  globalThis.activities = [];
  const record = () => activities.push(document.querySelector(".cm-activity")?.textContent);
  new MutationObserver(record).observe(document.body, {subtree: true, childList: true});
}"""
"""An activity may be shown for less time than there is between two looks of a test."""


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
    page.evaluate(RECORD_ACTIVITY)
    chat.send(demo_suggestions.TOOL)
    expect(page.locator(".cm-assistant strong", has_text="sunny")).to_be_visible()
    assert re.search("find_place|forecast", page.evaluate("activities.join()"))
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
