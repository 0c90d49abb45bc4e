"""The example of docs/howto/agents-sdk.md."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from django.core.exceptions import ImproperlyConfigured

from chatmemory import services
from chatmemory.services import Actor
from tests.agents.scripts import ListedModel, reply, texts_of
from tests.blocks import block_with
from tests.factories import make_user


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_an_agent_remembers_the_conversation_of_its_user(async_calls, monkeypatch):
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    names: dict = {}
    exec(block_with("docs/howto/agents-sdk.md", "# shop/guide.py").text, names)  # noqa: S102  # our own page
    model = ListedModel(reply("Hello."), reply("Shelf 3."), reply("Hello, Bob."))
    ann, bob = make_user("ann"), make_user("bob")
    for user, text in ((ann, "Hi"), (ann, "Where is the tea?"), (bob, "Hi")):
        answer = async_calls(names["ask"](user, "order-4711", text, model))
    assert answer == "Hello, Bob."
    assert texts_of(model.inputs[1]) == ["Hi", "Hello.", "Where is the tea?"]
    assert texts_of(model.inputs[2]) == ["Hi"]
    page = services.read_history(session_key="order-4711", by=Actor.user(ann))
    assert [row.role for row in page.rows] == ["user", "assistant"] * 2


@pytest.mark.parametrize(
    ("missing", "error"),
    [("agents", ImproperlyConfigured), ("chatmemory.agents.items", ModuleNotFoundError)],
)
def test_only_a_missing_sdk_names_the_extra(monkeypatch, missing, error):
    for name in ("chatmemory.agents", "chatmemory.agents.session", "chatmemory.agents.items"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(error) as raised:
        import_module("chatmemory.agents")
    assert ('pip install "django-chatmemory[agents]"' in str(raised.value)) == (missing == "agents")
