"""What people and the bot write: dialogues from the templates in the TOML files."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

PASTED_LINES = 150
TOPICS = ("status", "delivery", "returns", "product", "hours", "complaint", "person")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of the bot, and its result."""

    name: str
    args: Mapping[str, object]
    result: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A message of a person, and the bot's reply."""

    asked: str
    reply: str
    tool: ToolCall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """Exchanges about one topic."""

    topic: str
    title: str
    """Can be empty."""
    slots: Mapping[str, str]
    exchanges: list[Exchange]


class Language:
    """The templates of a language."""

    def __init__(self, code: str) -> None:
        self.code = code
        file = Path(__file__).with_name(f"{code}.toml")
        self._templates: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        self._words: dict[str, Any] = self._templates["words"]

    def slots(self, rng: Random) -> dict[str, str]:
        """Choose the values of one dialogue."""
        words = self._words
        amount = f"{rng.randint(9, 79)}{words['decimal']}{rng.choice(('00', '50', '90'))}"
        return {
            "order": str(rng.randint(40_000, 59_999)),
            "ticket": f"T-{rng.randint(1_000, 9_999)}",
            "product": rng.choice(words["products"]),
            "city": rng.choice(words["cities"]),
            "day": rng.choice(words["days"]),
            "number": str(rng.randint(2, 5)),
            "price": words["price"].format(amount=amount),
        }

    def dialogue(self, topic: str, rng: Random) -> Dialogue:
        """Write all exchanges of a topic."""
        slots, template = self.slots(rng), self._templates[topic]
        return Dialogue(
            topic=topic,
            title=rng.choice(template["title"]).format(**slots),
            slots=slots,
            exchanges=[_exchange(turn, slots, rng) for turn in template["turns"]],
        )

    def phrase(self, name: str, rng: Random, slots: Mapping[str, str] | None = None) -> str:
        """Write a phrase of `words`; choose from those that are lists."""
        phrase = self._words[name]
        text: str = rng.choice(phrase) if isinstance(phrase, list) else phrase
        return text.format(**(slots or self.slots(rng)))

    def pasted_orders(self, rng: Random) -> str:
        """Write a message that is too long for a model."""
        lines = []
        for _ in range(PASTED_LINES):
            slots = self.slots(rng)
            lines.append(f"- {slots['order']}: {slots['product']}, {slots['day']}")
        return "\n".join([self.phrase("pasted", rng), "", *lines])


def _exchange(turn: Mapping[str, Any], slots: Mapping[str, str], rng: Random) -> Exchange:
    """Write an exchange; the reply fits to the question, which has the same number."""
    number = rng.randrange(len(turn["user"]))
    reply = turn["bot"][number % len(turn["bot"])]
    tool = turn.get("tool")
    return Exchange(
        asked=turn["user"][number].format(**slots),
        reply=reply.format(**slots),
        tool=None if tool is None else TOOLS[tool](slots),
    )


def _find_order(slots: Mapping[str, str]) -> ToolCall:
    result = {"order": slots["order"], "state": "in_transit", "days_left": int(slots["number"])}
    return ToolCall(name="find_order", args={"order": slots["order"]}, result=result)


def _create_label(slots: Mapping[str, str]) -> ToolCall:
    args = {"order": slots["order"], "reason": "return"}
    return ToolCall(name="create_label", args=args, result={"label": f"R-{slots['order']}"})


def _opening_hours(slots: Mapping[str, str]) -> ToolCall:
    hours = {"mon-fri": "09:00-18:30", "sat": "10:00-16:00", "sun": None}
    return ToolCall(name="opening_hours", args={"shop": slots["city"]}, result=hours)


def _search_products(slots: Mapping[str, str]) -> ToolCall:
    found = [{"name": slots["product"], "price": slots["price"], "stock": int(slots["number"])}]
    return ToolCall(name="search_products", args={"text": slots["product"]}, result=found)


def _create_ticket(slots: Mapping[str, str]) -> ToolCall:
    args = {"subject": "call back", "order": slots["order"]}
    return ToolCall(name="create_ticket", args=args, result={"ticket": slots["ticket"]})


TOOLS: Mapping[str, Callable[[Mapping[str, str]], ToolCall]] = {
    "find_order": _find_order,
    "create_label": _create_label,
    "opening_hours": _opening_hours,
    "search_products": _search_products,
    "create_ticket": _create_ticket,
}
