"""What readers see of tool calls, their results and a model's reasoning."""

from __future__ import annotations

import json
import sys

import pytest

from chatmemory.codec import MAX_STEP_CHARS, encode, steps_of
from chatmemory.codec.steps import MAX_SHOWN_CALLS

CALL = {"id": "c1", "name": "weather", "args": {"city": "Lisboa", "days": [1, 2]}}


def assistant(**fields):
    return {"role": "assistant", "content": "", **fields}


def public(**fields):
    return steps_of(assistant(**fields)).public()


def test_a_call_has_its_arguments_as_json():
    [call] = public(tool_calls=[CALL])["calls"]
    assert json.loads(call.pop("args")) == CALL["args"]
    assert call == {"id": "c1", "name": "weather", "cut": False}


def test_an_invalid_call_has_its_arguments_as_the_model_wrote_them():
    invalid = {"id": "c2", "name": None, "args": '{"city": ', "error": "no JSON"}
    first, second = public(tool_calls=[CALL], invalid_tool_calls=[invalid])["calls"]
    assert first["id"] == "c1"
    assert second == {"id": "c2", "name": "", "args": '{"city": ', "cut": False}


@pytest.mark.parametrize(
    ("given", "failed"), [({}, False), ({"tool_status": "error", "name": "weather"}, True)]
)
def test_a_message_of_a_tool_names_the_call_that_it_answers(given, failed):
    steps = steps_of({"role": "tool", "content": "rain", "tool_call_id": "c1", **given})
    result = {"call": "c1", "name": given.get("name", ""), "failed": failed}
    assert steps.public() == {"result": result}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi", "tool_calls": [CALL]},
        {"role": "assistant", "content": "hi"},
        {"role": "tool", "content": "hi"},
        {"role": "assistant", "content": "hi", "tool_calls": "x", "additional_kwargs": 1},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": " "}, "hi"]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "abc"}]},
    ],
    ids=str,
)
def test_other_messages_have_no_steps(message):
    assert steps_of(message).public() == {}


@pytest.mark.parametrize(
    "fields",
    [
        # As the LangChain packages named in tests/responders/test_failures.py store it.
        {"content": [{"type": "thinking", "thinking": "Hm, rain.", "signature": "s"}, "Yes."]},
        {"content": [{"type": "reasoning", "reasoning": "Hm, rain."}]},
        {"content": [{"type": "reasoning", "id": "rs", "summary": [{"text": "Hm, rain."}]}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm, rain."}]}]},
        {"content": [{"type": "reasoning_content", "reasoning_content": {"text": "Hm, rain."}}]},
        {"additional_kwargs": {"reasoning_content": "Hm, rain."}},
        {"additional_kwargs": {"reasoning": {"summary": [{"text": "Hm, rain."}]}}},
    ],
    ids=str,
)
def test_reasoning_is_found_where_each_provider_puts_it(fields):
    assert public(**fields) == {"reasoning": {"text": "Hm, rain.", "cut": False}}


def test_several_pieces_of_reasoning_are_paragraphs():
    blocks = [{"type": "thinking", "thinking": text} for text in ("One.\n", "Two.")]
    assert public(content=blocks)["reasoning"]["text"] == "One.\n\nTwo."


def test_arguments_and_reasoning_are_truncated_and_marked():
    long = "x" * MAX_STEP_CHARS
    calls = [{"id": name, "name": name, "args": {"text": long}} for name in ("a", "b")]
    message = assistant(tool_calls=calls, additional_kwargs={"reasoning_content": long + "."})
    shown = steps_of(message).public()
    assert [len(call["args"]) for call in shown["calls"]] == [MAX_STEP_CHARS, 0]
    assert all(call["cut"] for call in shown["calls"])
    assert shown["reasoning"] == {"text": long, "cut": True}
    whole = steps_of(message, max_chars=sys.maxsize).public()
    assert [json.loads(call["args"]) for call in whole["calls"]] == [{"text": long}] * 2
    assert not any(part["cut"] for part in (*whole["calls"], whole["reasoning"]))


def test_the_number_of_calls_and_the_length_of_names_are_limited():
    long = "x" * 10_000
    calls = [{"id": long, "name": f"\n{long}", "args": {}}] * (MAX_SHOWN_CALLS + 1)
    shown = public(tool_calls=calls)["calls"]
    assert len(shown) == MAX_SHOWN_CALLS
    assert shown[0] == {"id": "x" * 100, "name": "x" * 100, "args": "{}", "cut": False}


def test_blocks_of_reasoning_are_known():
    blocks = [{"type": "reasoning_content", "reasoning_content": {"text": "Hm."}}]
    row = encode({"role": "assistant", "content": blocks})
    assert row.text == ""
    assert "unknown_blocks" not in (row.body or "")
