"""The bots of docs/howto/your-models.md, and what docs/howto/model.md states about a key."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from langchain.chat_models import init_chat_model

from chatmemory.errors import ModelAccessDenied
from chatmemory.responders.failures import kind_of
from tests.factories import make_session, make_user, make_visitor
from tests.test_examples import run_example

pytestmark = pytest.mark.django_db

PAGE = "docs/howto/your-models.md"


@pytest.fixture
def orders(shop, monkeypatch):
    """The chats of two customers with an order, and of two visitors."""
    models = ModuleType("shop.models")
    vars(models)["Order"] = shop.Purchase
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.models", models)
    customers = [make_user("ann"), make_user("bob")]
    for customer, item in zip(customers, ("kettle", "cup"), strict=True):
        shop.Purchase.objects.create(customer=customer, item=item)
    return [
        make_session("a", owner=customers[0]),
        make_session("b", owner=customers[1]),
        make_session("c", scope=make_visitor().actor.owner),
        make_session("d", scope=make_visitor().actor.owner),
    ]


@pytest.mark.slow
def test_a_tool_reads_the_orders_of_its_person_alone(orders, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    bot_for = run_example(PAGE, "def my_orders")["bot_for"]
    # In this thread, which sees the rows of the test.
    tools = [bot_for(talk).nodes["tools"].bound.tools_by_name["my_orders"] for talk in orders[:2]]
    assert [tool.invoke({}) for tool in tools] == ["kettle", "cup"]
    assert ["tools" in bot_for(talk).nodes for talk in orders] == [True, True, False, False]


async def test_a_generator_reads_the_orders_and_a_colleague_silences_it(orders, monkeypatch):
    plain = ModuleType("shop.plain_bot")
    vars(plain).update(run_example(PAGE, "async def answer"))
    monkeypatch.setitem(sys.modules, "shop.plain_bot", plain)
    bot_for = run_example(PAGE, "wait_for_colleague")["bot_for"]
    talk, visit = orders[1:3]
    assert [piece async for piece in bot_for(talk)([], talk)] == ["You have ordered: cup."]
    assert [piece async for piece in bot_for(visit)([], visit)] == ["Sign in to see your orders."]
    talk.metadata = {"human": True}
    assert [piece async for piece in bot_for(talk)([], talk)] == [
        "A colleague reads this and answers here."
    ]


def test_a_model_has_the_options_of_the_page(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model = run_example("docs/howto/model.md", "max_retries=1")["model"]
    assert (model.request_timeout, model.max_retries) == (30, 1)


def test_a_missing_key_is_access_denied(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(Exception, match="Missing credentials") as caught:
        init_chat_model("openai:gpt-5")
    assert kind_of(caught.value) is ModelAccessDenied
