"""Texts of the created messages: few sentences, in many combinations."""

from __future__ import annotations

from chatmemory import codec

_SUBJECTS = (
    "The invoice",
    "My parcel",
    "The login page",
    "This report",
    "The backup",
    "Our contract",
)
_VERBS = ("shows", "needs", "lists", "contains")
_OBJECTS = ("a wrong address", "two open questions", "an error at the end")

SENTENCES = [f"{a} {b} {c}." for a in _SUBJECTS for b in _VERBS for c in _OBJECTS]
ANSWERS = [
    "I checked the **records**, and the status is correct.",
    "Please try these steps:\n\n1. Sign out.\n2. Clear the cache.\n3. Sign in again.",
    "Run `restart --all` and wait for a minute, since the change needs some time to take effect.",
    "The rule applies to all orders of the last thirty days, except those that were returned.",
    "A colleague from the support team can see the details, and will answer within two days.",
]
NUMBER = "987654321"
"""Replaced by a number in the templates below."""
CALL = codec.encode(
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"name": "find_order", "args": {"order": int(NUMBER)}, "id": f"call_{NUMBER}"}
        ],
    }
).body
RESULT_TEXT = f"Order {NUMBER} was sent."
RESULT = codec.encode(
    {
        "role": "tool",
        "content": RESULT_TEXT,
        "tool_call_id": f"call_{NUMBER}",
        "name": "find_order",
    }
).body
ASKED = codec.dump_json({"role": "user", "content": f"And what about order {NUMBER}?"})
INPUT, OUTPUT = 987_000_001, 987_000_002
USAGE = codec.dump_json(
    {"input_tokens": INPUT, "output_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}
)
"""The usage of a turn, as `finish_turn` stores it, with numbers to replace."""
