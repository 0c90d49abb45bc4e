"""Example dialogues for the demo's user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A session to seed; its texts alternate between user and assistant, the user's first."""

    key: str
    title: str
    texts: Sequence[str]

    def messages(self) -> list[Mapping[str, object]]:
        """Convert the texts to plain messages."""
        return [
            {"role": "assistant" if number % 2 else "user", "content": text}
            for number, text in enumerate(self.texts)
        ]


DIALOGUES = (
    Dialogue(
        key="demo:kettle",
        title="A kettle that leaks",
        texts=(
            "Hello, my name is Mira. The kettle from order 48213 leaks at the handle.",
            "Thank you, Mira. I have noted order 48213. Does it leak all the time, or only while "
            "the water boils?",
            "Only while it boils. It is in our office in Lisbon, and it has not hurt anyone yet.",
            "Then it is most likely the seal of the lid. I can send a **new lid** to Lisbon, or "
            "take the kettle back. Which do you prefer?",
            "The new lid, please.",
            "It goes out tomorrow:\n\n- order: 48213\n- what: lid with seal\n- to: your office in "
            "Lisbon\n\nIf it still leaks after that, write to me here; I keep this conversation.",
        ),
    ),
    Dialogue(
        key="demo:night-train",
        title="Night train to Vienna",
        texts=(
            "I want to be in Vienna on Friday morning, without flying. I start in Zurich.",
            "There is a night train: Zurich 21:40, Vienna 07:25. A couchette or a seat?",
            "A couchette, lower berth. My bicycle comes with me.",
            "The couchette is fine. The bicycle needs its own reservation, and on Thursday night "
            "two places are left.",
            "Take one of them. What did I say about the berth?",
            "The lower one. So: Thursday night, Zurich to Vienna, couchette, lower berth, one "
            "bicycle.",
        ),
    ),
    Dialogue(
        key="demo:sourdough",
        title="Flat bread",
        texts=(
            "My sourdough stays flat. What can I do?",
            "How warm is your kitchen, and how long does the dough rest before it is shaped?",
            "About 18 degrees, four hours.",
            "At 18 °C that is short. Try:\n\n1. 26 °C, or twice the time\n2. shape it when it has "
            "grown by half, not by the clock\n3. an hour in the fridge before baking\n\n"
            "`hours = 4 * 2 ** ((26 - celsius) / 8)` is a fair rule for your starter.",
        ),
    ),
)
