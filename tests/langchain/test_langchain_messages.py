"""LangChain messages are stored as rows and read back unchanged."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    ToolMessageChunk,
    message_chunk_to_message,
)
from langchain_core.messages.tool import tool_call_chunk

from chatmemory import codec
from chatmemory.codec import dump_json
from chatmemory.errors import BadInput
from chatmemory.langchain import messages, to_langchain, to_plain
from chatmemory.logs import forget_logged

USAGE: Any = {
    "input_tokens": 1,
    "output_tokens": 2,
    "total_tokens": 3,
    "input_token_details": {"cache_read": 1, "priority": 2},
}
CALL: Any = {
    "name": "f",
    "args": {"z": 1, "a": {"y": [1.5, None]}},
    "id": "c1",
    "type": "tool_call",
}
BROKEN_CALL = {
    "type": "invalid_tool_call",
    "id": None,
    "name": "f",
    "args": '{"a":',
    "error": "cut off",
}
RAW_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
SECRET = {"lc": 1, "type": "secret", "id": ["PATH"]}

MESSAGES: list[BaseMessage] = [
    HumanMessage("hello"),
    HumanMessage("hello", id="1", name="Ann"),
    HumanMessage("", name="", id=""),
    HumanMessage(["a", {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]),
    HumanMessage([{"type": "hologram", "z": 1, "a": 2}]),
    HumanMessage("x", additional_kwargs=SECRET, response_metadata={"a": SECRET}),
    HumanMessage("x", tag="extra", role="a field of ours", usage=5, langchain_extra={"a": 1}),
    SystemMessage("be kind", id="s"),
    AIMessage("answer", id="run-1", usage_metadata=USAGE, response_metadata={"model_name": "m"}),
    AIMessage("", tool_calls=[CALL, {**CALL, "id": None}], invalid_tool_calls=[BROKEN_CALL]),
    AIMessage("", additional_kwargs={"tool_calls": [RAW_CALL]}),
    AIMessage([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "b"}]),
    ToolMessage("4", tool_call_id="c1", artifact={"z": [1, 2], "a": None}, status="error"),
    ToolMessage(["4", {"type": "text", "text": "5"}], tool_call_id="c1", artifact=[]),
    FunctionMessage(content="4", name="f"),
    *(ChatMessage(content="as one of ours", role=role) for role in codec.ROLES),
]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)
EXTRAS = st.dictionaries(
    st.sampled_from([*sorted(messages._KEYS), "other"]).filter(
        lambda key: key not in AIMessage.model_fields
    ),
    JSON.filter(lambda value: value is not None),
    max_size=3,
)


def through_a_row(message: BaseMessage) -> Any:
    row = codec.encode(to_plain(message))
    return to_langchain(codec.decode(row.role, row.text, row.body))


def refusal(message: object) -> str:
    with pytest.raises(BadInput) as caught:
        to_plain(message, field="messages[3]")
    assert caught.value.field == "messages[3]"
    return str(caught.value)


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_returns_the_message_that_was_stored(number):
    message = MESSAGES[number]
    back = through_a_row(message)
    assert back == message
    assert type(back) is type(message)
    assert dump_json(to_plain(back)) == dump_json(to_plain(message))


@given(
    content=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    name=st.none() | st.text("ab"),
    metadata=st.dictionaries(st.text("abc"), JSON),
    extras=EXTRAS,
)
def test_returns_any_message_of_an_assistant(content, name, metadata, extras):
    message: Any = AIMessage(content, name=name, response_metadata=metadata, tool_calls=[CALL])
    message.model_extra.update(extras)
    assert to_langchain(to_plain(message)) == message


def test_returns_values_that_were_set_after_construction():
    message: Any = AIMessage("", additional_kwargs={"tool_calls": [RAW_CALL]})
    message.tool_calls = []
    assert through_a_row(message).tool_calls == []

    message.tool_calls = [{**CALL, "extras": {"signature": "s"}, "index": 0}]
    message.usage_metadata = {**USAGE, "cost": 1}
    assert through_a_row(message) == message


def test_keeps_the_fields_of_a_subclass_as_extras():
    class Spoken(HumanMessage):
        voice: str

    back = through_a_row(Spoken(content="hello", voice="alto"))
    assert (type(back), back.model_extra) == (HumanMessage, {"voice": "alto"})


def test_stores_a_chunk_as_the_message_it_is_a_part_of():
    whole = AIMessageChunk(content="a", id="run-1", usage_metadata=USAGE)
    for name, args in (("f", '{"a":'), (None, "1}")):
        call = tool_call_chunk(name=name, args=args, index=0)
        whole += AIMessageChunk(content="b", id="run-1", tool_call_chunks=[call])
    human: Any = HumanMessageChunk(content="a")
    tool = ToolMessageChunk(content="a", tool_call_id="1")
    for chunk in (whole, human, tool):
        assert through_a_row(chunk) == message_chunk_to_message(chunk)

    human.model_extra["tag"] = "extra"
    assert through_a_row(human).tag == "extra"


@pytest.mark.parametrize("message", [None, "text", b"bytes", 5, {"role": "user"}, ("user", "hi")])
def test_refuses_other_types_by_name(message):
    assert f"messages[3] must be a LangChain message, not {type(message).__name__}" in refusal(
        message
    )


def test_refuses_a_message_with_an_unknown_role_by_name():
    assert "messages[3] is a RemoveMessage" in refusal(RemoveMessage(id="1"))
    assert "messages[3] is a ChatMessage of role 'root'" in refusal(
        ChatMessage(content="x", role="root")
    )
    assert len(refusal(ChatMessage(content="x", role="\x1b" * 500))) < 250
    assert "messages[3] is a BaseMessage" in refusal(BaseMessage("x", type="own"))


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("user", HumanMessage),
        ("assistant", AIMessage),
        ("system", SystemMessage),
        ("tool", ToolMessage),
        ("root", HumanMessage),
    ],
)
def test_returns_a_placeholder_as_a_message_of_its_role(role, expected):
    message = to_langchain(codec.decode(role, "what is left", "{broken"))
    assert type(message) is expected
    assert message.content == "what is left"
    assert message.additional_kwargs == {"quarantined": True}


@pytest.mark.parametrize(
    "plain",
    [
        {"role": "assistant", "content": "x", "tool_calls": "nonsense"},
        {"role": "assistant", "content": "x", "tool_calls": [5]},
        {"role": "assistant", "content": "x", "tool_calls": [{"name": "f"}]},
        {"role": "assistant", "content": "x", "usage": {"input_tokens": "many"}},
        {"role": "assistant", "content": "x", "additional_kwargs": None},
        {"role": "assistant", "content": "x", "additional_kwargs": [1]},
        {"role": "user", "content": "x", "kind": "function"},
        {"role": "user", "content": "x", "kind": ["chat"]},
        {"role": "user", "content": "x", "id": {"a": 1}},
        {"role": "user", "content": "x", "langchain_extra": 5},
        {"role": "tool", "content": "x"},
    ],
    ids=lambda plain: dump_json(plain)[18:],
)
def test_returns_a_placeholder_for_a_message_that_langchain_refuses(plain, caplog):
    forget_logged()
    for _ in range(2):
        assert to_langchain(plain).additional_kwargs == {"quarantined": True}
        assert to_langchain(plain).content == "x"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_does_not_pass_unknown_keys_to_the_constructor():
    plain = {"role": "user", "content": "x", "type": "ai", "content_blocks": [], "asks": {"a": 1}}
    message: Any = to_langchain(plain)
    assert (message.type, message.content, message.asks) == ("human", "x", {"a": 1})


def test_returns_the_flags_of_a_repair():
    message = through_a_row(AIMessage("a\0"))
    assert (message.content, message.repaired) == ("a\ufffd", ["content"])
