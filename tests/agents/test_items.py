"""Items of the Agents SDK as messages: kept exactly, and readable for all other readers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from chatmemory import services
from chatmemory.agents import DjangoSession
from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.models import Message, Session
from chatmemory.services import Actor
from chatmemory.window import read_window
from tests.admin.visits import LIST, operator
from tests.agents.scripts import CALL, RESULT, session_of
from tests.factories import TALK, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

REPLY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [
        {"type": "output_text", "text": "Take an umbrella.", "annotations": [], "logprobs": []}
    ],
}
REASONING = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Rain needs an umbrella."}],
    "encrypted_content": "gAAAA",
}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}

KINDS: dict[str, tuple[Any, str, str]] = {
    "user": ({"content": "hi", "role": "user"}, "user", "hi"),
    "empty": ({"role": "user", "content": ""}, "user", ""),
    "no field": ({}, "assistant", "item {}"),
    "message": ({"type": "message", "role": "user", "content": "hi"}, "user", "hi"),
    "parts": (
        {"role": "user", "content": [{"type": "input_text", "text": "See:"}, IMAGE]},
        "user",
        "See:\n[input_image]",
    ),
    "developer": ({"role": "developer", "content": "Be brief."}, "system", "Be brief."),
    "reply": (REPLY, "assistant", "Take an umbrella."),
    "refusal": (
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I can't."}]},
        "assistant",
        "I can't.",
    ),
    "call": (CALL, "assistant", ""),
    "result": (RESULT, "tool", "Rain in Oslo."),
    "result in parts": (
        {**RESULT, "output": [{"type": "input_text", "text": "Rain."}, IMAGE]},
        "tool",
        "Rain.\n[input_image]",
    ),
    "screenshot": (
        {
            "type": "computer_call_output",
            "call_id": "c2",
            "output": {"type": "computer_screenshot"},
        },
        "tool",
        "[computer_screenshot]",
    ),
    "reasoning": (REASONING, "assistant", ""),
    "search": (
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"query": "x"}},
        "assistant",
        'web_search_call {"action":{"query":"x"}}',
    ),
    "reference": ({"type": "item_reference", "id": "m"}, "assistant", "item_reference {}"),
    "unknown": (
        {"b": None, "a": [1.5, True, {}]},
        "assistant",
        'item {"b":null,"a":[1.5,true,{}]}',
    ),
}
"""Items with the role and the text of their messages."""


@pytest.mark.parametrize(("item", "role", "text"), KINDS.values(), ids=KINDS.keys())
async def test_an_item_is_kept_exactly_and_shown_by_its_kind(item, role, text):
    await session_of().add_items([item])
    [found] = await session_of().get_items()
    assert json.dumps(found) == json.dumps(item)  # in this order of the keys too
    row = await Message.objects.aget()
    assert (row.role, row.text) == (role, text)
    assert await session_of().pop_item() == item


@pytest.mark.parametrize(
    ("kind", "given", "args"),
    [
        ("function", {"name": "weather", "arguments": '{"city":"Oslo"}'}, {"city": "Oslo"}),
        ("function", {"name": "weather", "arguments": "no JSON"}, {"arguments": "no JSON"}),
        ("function", {"name": "weather", "arguments": "[1]"}, {"arguments": "[1]"}),
        ("custom_tool", {"name": "weather", "input": "x", "id": "ct_1"}, {"input": "x"}),
        (
            "computer",
            {"action": {"type": "wait"}, "status": "completed"},
            {"action": {"type": "wait"}},
        ),
    ],
    ids=["object", "text", "list", "custom", "computer"],
)
def test_a_call_has_its_name_and_its_arguments(kind, given, args, async_calls):
    async_calls(session_of().add_items([{"type": f"{kind}_call", "call_id": "c1", **given}]))
    [call] = Message.objects.get().plain()["tool_calls"]
    assert call == {"name": given.get("name", f"{kind}_call"), "args": args, "id": "c1"}


def test_other_readers_see_calls_and_results_and_no_reasoning(async_calls):
    question = {"role": "user", "content": "An umbrella?"}
    async_calls(session_of().add_items([question, REASONING, CALL, RESULT, REPLY]))
    assert [m.content for m in DjangoChatMessageHistory("talk", owner=None).messages] == [
        "An umbrella?",
        *("", "", "Rain in Oslo.", "Take an umbrella."),
    ]
    window = read_window(Session.objects.get()).messages
    assert [message["role"] for message in window] == ["user", "assistant", "tool", "assistant"]
    [call] = window[1]["tool_calls"]
    assert call == {"name": "weather", "args": {"city": "Oslo"}, "id": "c1"}
    assert window[2]["tool_call_id"] == "c1"


def test_the_admin_shows_each_item_by_its_kind(async_calls):
    question = {"role": "user", "content": "An umbrella?"}
    async_calls(session_of().add_items([question, REASONING, CALL, RESULT, REPLY]))
    client = operator("view_session", "view_transcript")
    page = client.get(f"{LIST}{Session.objects.get().pk}/change/")
    rows = [row for segment in page.context["segments"] for row in segment.rows]
    assert [(row.role, row.text, row.reasoning) for row in rows] == [
        ("user", "An umbrella?", ""),
        ("assistant", "", "Rain needs an umbrella."),
        ("assistant", "", ""),
        ("tool", "Rain in Oslo.", ""),
        ("assistant", "Take an umbrella.", ""),
    ]
    assert [call.name for call in rows[2].calls] == ["weather"]
    assert "Oslo" in rows[2].calls[0].args
    for text in ("Rain needs an umbrella.", "weather", "Rain in Oslo.", "Take an umbrella."):
        assert text in page.text


def test_the_chat_page_shows_each_item_by_its_kind(async_calls):
    user = make_user("ann")
    session = DjangoSession("talk", by=Actor.user(user))
    question = {"role": "user", "content": "An umbrella?"}
    async_calls(session.add_items([question, REASONING, CALL, RESULT, REPLY]))
    client = Client()
    client.force_login(user)
    page = client.get(reverse("chatmemory:session", args=["talk"])).text
    for text in ("An umbrella?", "Rain needs an umbrella.", "weather", "Oslo", "Take an umbrella."):
        assert text in page
    assert "x_item" not in page
    assert "gAAAA" not in page


def test_reasoning_without_a_summary_is_shown_as_such(async_calls):
    async_calls(session_of().add_items([{**REASONING, "summary": []}]))
    [row] = services.read_history(**TALK).rows
    assert row.steps().reasoning.text == "[no summary]"


def test_of_redacted_messages_ids_and_names_are_left(async_calls):
    secret = {"role": "user", "content": "My loan is 5,000.", "type": "message"}
    items = [secret, CALL, RESULT, REPLY]
    async_calls(session_of().add_items(items))
    for seq in (1, 2, 3):
        services.redact_message(**TALK, seq=seq, reason="asked for it")
    assert async_calls(session_of().get_items()) == [
        {"role": "user", "content": "[redacted]"},
        {**CALL, "arguments": "{}"},
        {**RESULT, "output": "[redacted]"},
        REPLY,
    ]


@pytest.mark.parametrize(
    "damage",
    [
        {"body": "{"},
        {"body": '{"role": "user", "content": 5, "x_item": {"role": "user"}}'},
        {"quarantined": True},
    ],
    ids=["json", "shape", "marked"],
)
def test_a_damaged_message_hides_no_other(damage, async_calls):
    async_calls(session_of().add_items([REPLY, REPLY, REPLY]))
    Message.objects.filter(seq=2).update(**damage)
    assert async_calls(session_of().get_items()) == [REPLY, REPLY]
    Message.objects.filter(seq=3).update(**damage)
    assert async_calls(session_of().pop_item()) == REPLY
    assert async_calls(session_of().get_items()) == []
