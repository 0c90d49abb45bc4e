"""How many statements each method of each URL executes, apart from Django's and optional apps'."""

from __future__ import annotations

import json
import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.access.visitors import COOKIE
from chatmemory.api.operations import OPERATIONS
from chatmemory.api.urls import resources
from chatmemory.models import Message, Turn, Visitor
from chatmemory.services import Actor
from tests.api.calls import JSON, MESSAGES, talk_of
from tests.factories import make_visitor

pytestmark = pytest.mark.django_db

OF_CORE = re.compile(r'[`"]chatmemory_(?!(langgraph|search|statistics)_)')

TURN = {"turn": "c1"}
SEND = {"client_id": "c2", "text": "hi"}
KEY = "0f3e2c1a-8f4b-4c57-9d1e-2f6a7b8c9d0e"
STATEMENTS = {
    "GET health/": 2,
    "GET sessions/": 2,
    "POST sessions/ {key}": 7,
    "GET sessions/<key>/": 2,
    "PATCH sessions/<key>/ {title}": 3,
    "PATCH sessions/<key>/ {pinned}": 4,
    "DELETE sessions/<key>/": 7,
    "POST sessions/<key>/archive/ {}": 7,
    "POST sessions/<key>/unarchive/ {}": 3,
    "POST sessions/<key>/unarchive/ archived": 6,
    "GET removed/": 1,
    "POST removed/<int:undo>/restore/ {}": 18,
    "GET sessions/<key>/messages/": 1,
    "GET sessions/<key>/messages/ after": 1,
    "GET sessions/<key>/messages/ cursor": 1,
    "POST sessions/<key>/messages/ {client_id, text}": 7,
    "GET sessions/<key>/messages/<int:seq>/": 1,
    "GET sessions/<key>/messages/<int:seq>/versions/": 3,
    "GET sessions/<key>/turns/": 2,
    "GET sessions/<key>/turns/<turn>/": 2,
    "PUT sessions/<key>/turns/<turn>/feedback/ {value}": 7,
    "DELETE sessions/<key>/turns/<turn>/feedback/": 4,
    "POST sessions/<key>/stop/ {}": 6,
    "POST sessions/<key>/stop/ {turn}": 6,
    "GET own-data/export/": 26,
    "POST own-data/erase/ {confirm}": 96,
    "POST visitors/ {}": 3,
    "GET visitors/adoption/": 3,
    "POST visitors/adoption/ {visitor}": 13,
    "DELETE visitors/me/": 59,
    "POST tickets/ {}": 4,
}
"""The number of statements that name our tables."""
SQLITE_LOCK = re.compile(r"""SET .(fence|digest). = \S+\1. WHERE""")
"""SQLite locks a session by an UPDATE, other databases by the SELECT that reads it."""
BODIES = {
    "{key}": {"key": KEY},
    "{title}": {"title": "x"},
    "{pinned}": {"pinned": True},
    "{client_id, text}": SEND,
    "{turn}": TURN,
    "{value}": {"value": 1},
    "{confirm}": {"confirm": "ann"},
    "{visitor}": {"visitor": ""},
    "{}": {},
    "archived": {},
}


@pytest.fixture
def names(ann, settings):
    """Ann's data: a session with an ended and a running turn, and a purged one."""
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "SELF_SERVICE": ["export", "erase"],
        "ALLOW_ANONYMOUS": True,
    }
    by = Actor.user(ann)
    for key in ("talk", "purged"):
        talk_of(ann, *"abcd", key=key)
    undo = services.purge_session(session_key="purged", by=by, reason="").pk
    where = {"session_key": "talk", "by": by}
    session = services.get_session(**where)
    Message.stored.filter(session=session, seq__lte=2).update(turn=1)
    Turn.objects.create(
        session=session, client_id="t0", status="complete", user_seq=1, epoch=session.epoch
    )
    services.admit_turn(**where, client_id="c1", content="hi", owner="another")
    return {"<key>": "talk", "<int:undo>": str(undo), "<int:seq>": "1", "<turn>": "t0"}


def test_the_table_has_each_method_of_each_url():
    methods = {
        f"{method} {url.pattern}"
        for url in resources
        for view, method in OPERATIONS
        if view == url.callback.view_class.__name__
    }
    assert len(methods) == len(OPERATIONS)
    assert methods == {" ".join(request.split(" ")[:2]) for request in STATEMENTS}


def as_visitor(api, address):
    """Return a client without an account; for an adoption, Ann's with a visitor too."""
    client = api if "adoption" in address else Client()
    if address != "visitors/":
        guest = make_visitor()
        services.open_session(session_key="other", by=guest.actor)
        client.cookies[COOKIE] = guest.token
    return client


@pytest.mark.parametrize("request_", STATEMENTS)
def test_each_method_executes_a_fixed_number_of_statements(api, ann, names, request_):
    method, address, *more = request_.split(" ", 2)
    for part, name in names.items():
        address = address.replace(part, name)
    query = {}
    if more == ["after"]:
        query = {"after": 1}
    elif more == ["cursor"]:
        query = {"cursor": api.get(MESSAGES).json()["cursor"]}
    elif more == ["archived"]:
        services.archive_session(session_key="talk", by=Actor.user(ann), reason="")
    body = json.dumps(BODIES[more[0]]) if more and more[0] in BODIES else None
    sent = {"data": query} if method == "GET" else {"data": body or "", "content_type": JSON}
    if address.startswith("visitors/"):
        sent["secure"] = True
        api = as_visitor(api, address)
        if '""' in sent["data"]:
            sent["data"] = body.replace('""', f'"{Visitor.objects.get().digest}"')
    with CaptureQueriesContext(connection) as queries:
        answer = getattr(api, method.lower())(f"/api/{address}", **sent)
        answer.getvalue()
    assert answer.status_code < 300
    statements = [query["sql"] for query in queries if OF_CORE.search(query["sql"])]
    statements = [statement for statement in statements if not SQLITE_LOCK.search(statement)]
    assert len(statements) == STATEMENTS[request_], "\n".join(statements)
