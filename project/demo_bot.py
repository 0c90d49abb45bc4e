"""The bot of the demo: it shows what a chat can do, and answers for a small shop by rules."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

from chatmemory.codec import text_of
from chatmemory.errors import ModelUnavailable
from chatmemory.models import Session
from chatmemory.responders import Progress, demo
from project import demo_languages as languages
from project import demo_suggestions as suggestions
from project import demo_topics as topics

REPLIES = Path(__file__).parent / "demo_replies"
STORY, RICH = ((REPLIES / f"{name}.md").read_text().strip() for name in ("story", "rich"))

WORD_SECONDS = 0.05
"""The pause between two words of the story: it takes half a minute."""
FAST_SECONDS = 0.015
STEP_SECONDS = 1.0
"""How long a step of a tool takes."""
THINKING_SECONDS = 8.0

THOUGHTS = "The user asks me to think first. So I wait, and then answer in one sentence."
BOOK_A_TABLE = r"\b(?:book|reserve)\b.{0,20}\btable\b"
WHEN = "Gladly. For what time?"
TIMES = ["18:30", "19:30", "21:00"]
FORECAST = [
    {"day": "today", "sky": "sunny", "rain_mm": 0},
    {"day": "tomorrow", "sky": "showers", "rain_mm": 6},
]
TICKET = "T-1001"
DAY_OF_ARRIVAL = "Thursday"

Piece = str | Progress | Mapping[str, object]
Messages = list[dict[str, object]]


async def answer(messages: Messages, session: Session) -> AsyncGenerator[Piece, None]:
    """Reply to a suggestion, to the answer of a question, or as the bot of the shop."""
    asked = text_of(messages[-1]["content"]).strip()
    match asked:
        case suggestions.STORY:
            pieces = typed(STORY, WORD_SECONDS)
        case suggestions.RICH:
            pieces = typed(RICH, FAST_SECONDS)
        case suggestions.TOOL:
            pieces = forecast()
        case suggestions.QUESTION:
            pieces = question()
        case suggestions.SLOW:
            pieces = slow_start()
        case suggestions.ERROR:
            pieces = failure()
        case _ if is_reply_to(WHEN, messages):
            pieces = booking(asked)
        case _ if re.search(BOOK_A_TABLE, asked.lower()):
            pieces = question()
        case _:
            pieces = shop(messages)
    async for piece in pieces:
        yield piece


async def typed(text: str, pause: float) -> AsyncGenerator[Piece, None]:
    """Stream a text word by word."""
    for word in re.findall(r"\s*\S+", text):
        yield word
        await asyncio.sleep(pause)


async def forecast() -> AsyncGenerator[Piece, None]:
    """Call two tools, one after the other."""
    async for piece in step("find_place", {"name": "Lisbon"}, {"id": 2267057, "country": "PT"}):
        yield piece
    async for piece in step("forecast", {"place": 2267057, "days": 2}, FORECAST):
        yield piece
    reply = "Not today: it stays **sunny**. Tomorrow there will be showers, about 6 mm."
    async for piece in typed(reply, WORD_SECONDS):
        yield piece


async def step(name: str, args: object, result: object) -> AsyncGenerator[Piece, None]:
    """Call a tool, wait, and store its result."""
    call = {"id": f"call-{name}", "name": name, "args": args}
    yield {"role": "assistant", "content": "", "tool_calls": [call]}
    yield Progress("tool", name, "started")
    await asyncio.sleep(STEP_SECONDS)
    yield Progress("tool", name, "ended")
    content = json.dumps(result, indent=2)
    yield {"role": "tool", "name": name, "tool_call_id": call["id"], "content": content}


async def question() -> AsyncGenerator[Piece, None]:
    """Ask the user, with choices, as a graph's `interrupt` does."""
    asks = {"thread": "demo", "interrupts": [{"id": "when", "value": {"choices": TIMES}}]}
    yield {"role": "assistant", "content": WHEN, "asks": asks}


def is_reply_to(question: str, messages: Messages) -> bool:
    """Whether the last message follows this question of the bot."""
    return any(
        m["role"] == "assistant" and text_of(m["content"]) == question for m in messages[-2:-1]
    )


async def booking(time: str) -> AsyncGenerator[Piece, None]:
    """Confirm the answer."""
    async for piece in typed(f"Done: a table for tonight, **{time}**. (Not really.)", WORD_SECONDS):
        yield piece


async def slow_start() -> AsyncGenerator[Piece, None]:
    """Think before the first word, and store the reasoning with the reply."""
    yield Progress("thinking", "", "started")
    await asyncio.sleep(THINKING_SECONDS)
    yield Progress("thinking", "", "ended")
    reply = "I have thought about it: a chat that shows what it is doing feels much faster."
    async for piece in typed(reply, WORD_SECONDS):
        yield piece
    reasoning = {"type": "reasoning", "reasoning": THOUGHTS}
    yield {"role": "assistant", "content": [reasoning, {"type": "text", "text": reply}]}


async def failure() -> AsyncGenerator[Piece, None]:
    """Fail as a provider does whose server goes away."""
    async for piece in typed("This reply begins well, but", WORD_SECONDS):
        yield piece
    raise ModelUnavailable


async def shop(messages: Messages) -> AsyncGenerator[Piece, None]:
    """Answer as the bot of a small shop that remembers what people say."""
    texts = demo.users_texts(messages)
    facts = demo.facts(texts[-1:])
    found = topics.find_topics(texts[-1])
    if is_reply_to(topics.WHICH_ORDER, messages) and order_in(texts[-1:]):
        found = [topics.STATUS]
    if recalled := demo.recall(messages):
        pieces = typed(recalled, FAST_SECONDS)
    elif language := languages.find_language(texts[-1]):
        pieces = typed(languages.REPLIES[language], FAST_SECONDS)
    elif found:
        pieces = about(found, texts)
        if "name" in facts:
            yield f"Nice to meet you, **{facts['name']}**. "
    else:
        pieces = typed(demo.reply(messages) if facts else topics.UNKNOWN, FAST_SECONDS)
    async for piece in pieces:
        yield piece


def about(found: list[topics.Topic], texts: Sequence[str]) -> AsyncGenerator[Piece, None]:
    """Answer these topics."""
    match found:
        case [topics.STATUS]:
            return order_status(order_in(texts))
        case [topics.PERSON]:
            return ticket()
        case _:
            return typed("\n\n".join(topic.reply for topic in found), FAST_SECONDS)


def order_in(texts: Sequence[str]) -> str | None:
    """Return the newest number of an order, or of at least four digits."""
    numbers = [
        found for text in texts for found in re.findall(r"(?<![\w.+€$-])#?(\d{4,12})\b", text)
    ]
    return numbers[-1] if numbers else None


async def order_status(order: str | None) -> AsyncGenerator[Piece, None]:
    """Look an order up, or ask for its number."""
    if order is None:
        yield topics.WHICH_ORDER
        return
    result = {"order": order, "state": "in_transit", "arrives": DAY_OF_ARRIVAL}
    async for piece in step("find_order", {"order": order}, result):
        yield piece
    reply = topics.STATUS.reply.format(order=order, day=DAY_OF_ARRIVAL)
    async for piece in typed(reply, FAST_SECONDS):
        yield piece


async def ticket() -> AsyncGenerator[Piece, None]:
    """Open a ticket for a person."""
    async for piece in step("create_ticket", {"subject": "a question"}, {"ticket": TICKET}):
        yield piece
    async for piece in typed(topics.PERSON.reply.format(ticket=TICKET), FAST_SECONDS):
        yield piece
