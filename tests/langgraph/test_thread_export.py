"""Exports of threads: a line of JSON for each checkpoint."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from pydantic import BaseModel

from chatmemory.errors import NotFound
from chatmemory.langgraph.actions import ThreadAction
from chatmemory.langgraph.saver import DjangoSaver
from chatmemory.models import AuditEntry, Session
from chatmemory.services import SERVER
from tests.factories import BY
from tests.langgraph.graphs import ask, at, reply
from tests.langgraph.test_thread_removal import run, talk

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.slow]


class Order(BaseModel):
    number: int


@dataclass
class Place:
    city: str


VALUES = {
    "messages": [HumanMessage("hi", id="1"), AIMessage("a\0b", id="2")],
    "order": Order(number=4711),
    "place": Place("Rome"),
    "data": b"\xff\0",
    "numbers": [1, math.nan, math.inf, {2}],
    "others": {("a", 1): Decimal("1.50"), None: None},
}


def test_each_checkpoint_is_a_line_with_its_values_and_writes():
    saver = DjangoSaver(scope=SERVER, by=BY, reason="request 17")
    run(saver, "canary", nodes=(reply, ask))
    run(DjangoSaver(scope="user:1"), "foreign")
    lines = [json.loads(line) for line in saver.export()]
    assert len(lines) == len([*saver.list(None)]) == 3
    assert {(line["thread"], line["namespace"]) for line in lines} == {("talk", "")}
    assert lines[0]["values"]["messages"] == ["canary", "reply to canary"]
    assert lines[0]["at"] >= lines[1]["at"]
    assert lines[0]["metadata"]["step"] == 1
    [asked] = [write for write in lines[0]["writes"] if write["channel"] == "__interrupt__"]
    assert asked["value"][0]["value"] == "sure about reply to canary?"
    entry = AuditEntry.objects.get(action=ThreadAction.EXPORT)
    assert (entry.counts, entry.reason, entry.actor_label) == (
        {"checkpoints": 3},
        "request 17",
        BY.label,
    )


def test_threads_of_a_conversation_are_exported_while_it_exists():
    session = talk()
    saver = DjangoSaver(session=session)
    run(saver, "a")
    assert len([*saver.export()]) == 3
    assert AuditEntry.objects.get(action=ThreadAction.EXPORT).session_pk == session.pk
    unknown = Session(pk=0, scope=SERVER, key="gone")
    with pytest.raises(NotFound):
        [*DjangoSaver(session=unknown).export()]


def test_values_that_json_has_no_form_for_are_written_as_text():
    builder = StateGraph(dict)
    builder.add_node("all", lambda state: VALUES)
    builder.add_edge(START, "all")
    saver = DjangoSaver(scope=SERVER)
    graph: Any = builder.compile(checkpointer=saver)
    async_to_sync(graph.ainvoke)({}, at())
    values = json.loads(next(saver.export()))["values"]["__root__"]
    assert [message["data"]["content"] for message in values["messages"]] == ["hi", "a\0b"]
    assert values["order"] == {"number": 4711}
    assert values["place"] == {"city": "Rome"}
    assert values["data"] == "/wA="
    assert values["numbers"] == [1, "nan", "inf", [2]]
    assert values["others"] == {"('a', 1)": "1.50", "None": None}


def test_a_saver_without_owner_exports_nothing():
    with pytest.raises(TypeError):
        [*DjangoSaver().export()]
