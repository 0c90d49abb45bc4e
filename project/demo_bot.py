"""The bot of the demo: it shows what a chat can do, and otherwise answers as `demo` does."""

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
from project import demo_suggestions as suggestions

REPLIES = Path(__file__).parent / "demo_replies"
STORY, RICH = ((REPLIES / f"{name}.md").read_text().strip() for name in ("story", "rich"))

WORD_SECONDS = 0.05
"""The pause between two words of the story: it takes half a minute."""
FAST_SECONDS = 0.015
STEP_SECONDS = 1.0
"""How long a step of a tool takes."""
THINKING_SECONDS = 8.0

THOUGHTS = "The user asks me to think first. So I wait, and then answer in one sentence."
WHEN = "Gladly. For what time?"
TIMES = ["18:30", "19:30", "21:00"]
FORECAST = [
    {"day": "today", "sky": "sunny", "rain_mm": 0},
    {"day": "tomorrow", "sky": "showers", "rain_mm": 6},
]

Piece = str | Progress | Mapping[str, object]
Messages = list[dict[str, object]]


async def answer(messages: Messages, session: Session) -> AsyncGenerator[Piece, None]:
    """Reply to a suggestion, to the answer of a question, or as the demo model."""
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
        case _ if is_question(messages[-2:-1]):
            pieces = booking(asked)
        case _:
            pieces = demo.answer(messages, session)
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


def is_question(messages: Sequence[Mapping[str, object]]) -> bool:
    """Whether these messages end with the bot's question."""
    return any(m["role"] == "assistant" and text_of(m["content"]) == WHEN for m in messages)


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
