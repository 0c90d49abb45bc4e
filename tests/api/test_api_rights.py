"""Every REST URL with every method: responses and SQL do not reveal another user's session."""

from __future__ import annotations

import json
import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.api.urls import resources
from chatmemory.models import Feedback, Message, Session, Turn
from chatmemory.search.urls import resources as search_resources
from chatmemory.services import Actor
from tests.factories import make_messages, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.regression]

SECRET = "classified"
SEND = {"client_id": "c1", "text": "hi"}
VERBS = ("get", "head", "options", "post", "put", "patch", "delete", "trace")
READ_ONLY = {"get": 200, "head": 200}
URLS = {
    "health/": READ_ONLY,
    "sessions/": {"get": 200, "head": 200, "post": 201},
    "sessions/<key>/": {**READ_ONLY, "patch": 200, "delete": 200},
    "sessions/<key>/archive/": {"post": 200},
    "sessions/<key>/unarchive/": {"post": 200},
    "removed/": READ_ONLY,
    "removed/<int:undo>/restore/": {"post": 200},
    "sessions/<key>/messages/": {"get": 200, "head": 200, "post": 202},
    "sessions/<key>/messages/<int:seq>/": READ_ONLY,
    "sessions/<key>/messages/<int:seq>/versions/": READ_ONLY,
    "sessions/<key>/turns/": READ_ONLY,
    "sessions/<key>/turns/<turn>/": READ_ONLY,
    "sessions/<key>/turns/<turn>/feedback/": {"put": 200, "delete": 200},
    "sessions/<key>/stop/": {"post": 200},
    "own-data/export/": {"get": 200},
    "own-data/erase/": {"post": 403},
    "visitors/": {"post": 409},
    "visitors/adoption/": {"get": 200, "head": 200, "post": 404},
    "visitors/me/": {"delete": 404},
    "tickets/": {"post": 201},
    "search/": {"post": 200},
}
"""The status of each method for the user's own session; every other method is 405."""
BODIES = {
    "sessions/": [{}, {"title": "x"}],
    "sessions/<key>/messages/": [SEND, {**SEND, "epoch": 1}, {**SEND, "wait": 0}, {}],
    "sessions/<key>/archive/": [{}],
    "sessions/<key>/unarchive/": [{}],
    "sessions/<key>/stop/": [{}, {"turn": "t0"}, {"turn": "other"}],
    "removed/<int:undo>/restore/": [{}],
    "own-data/erase/": [{"confirm": "ann"}],
    "visitors/": [{}],
    "visitors/adoption/": [{"visitor": "0" * 64}],
    "tickets/": [{}],
    "search/": [
        {"query": "question answer", "session": "<key>"},
        {"query": "question answer"},
        {"query": f"{SECRET} plain", "mode": "prefix", "order": "newest"},
        {"query": f"{SECRET} question", "mode": "phrase"},
        {"query": "answer", "session": "<key>", "cursor": "1.1.0"},
        {},
    ],
}
QUERIES = {
    "sessions/": ["", "?limit=1", "?cursor=.9", "?title=e", "?archived=false&pinned=false"],
    "own-data/export/": ["", "?format=markdown"],
    "removed/": ["", "?limit=1", "?cursor=99999999"],
    "sessions/<key>/messages/": ["", "?after=0", "?before=9&limit=1"],
}


def expected_of(body):
    """The status of a POST to an unknown session, if it is not 404."""
    if body == {}:
        return 400  # the shape is checked first
    if body and "query" in body and "session" not in body:
        return 200  # finds nothing of others
    return 409 if body and "epoch" in body else 404  # an epoch claims that there was one


@dataclass(frozen=True)
class Talk:
    """A user's session with a turn, and the entry of a purge of another one."""

    session: Session
    undo: int

    @property
    def names(self):
        """The parts of URLs that name this user's objects."""
        return {"<key>": self.session.key, "<int:undo>": str(self.undo)}


def unknown_names():
    return {"<key>": str(uuid.uuid4()), "<int:undo>": "77777777"}


@pytest.fixture
def talks():
    """Return the sessions of two users, each with a UUID as key."""
    return [talk_of(make_user("ann"), "plain"), talk_of(make_user("bob"), SECRET)]


@pytest.fixture
def ann(talks):
    client = Client()
    client.force_login(talks[0].session.owner)
    return client


def talk_of(user, word):
    removed = {"session_key": f"{word}-{uuid.uuid4()}", "by": Actor.user(user)}
    services.open_session(**removed, title=f"{word} removed")
    undo = services.purge_session(**removed, reason="").pk
    where = {"session_key": str(uuid.uuid4()), "by": Actor.user(user)}
    hidden = {"instructions": f"{word} prompt", "metadata": {"word": word}}
    services.open_session(**where, title=f"{word} title", **hidden)
    services.append_messages(**where, messages=make_messages(f"{word} question", f"{word} answer"))
    session = services.get_session(**where)
    Message.stored.filter(session=session).update(turn=1)
    Turn.objects.create(
        session=session, client_id="t0", status="complete", user_seq=1, epoch=session.epoch
    )
    return Talk(session, undo)


def session_columns(session):
    return {field.attname: getattr(session, field.attname) for field in session._meta.fields}


def requests_of(route, verb):
    """Return the query strings and bodies for a URL."""
    if verb in ("get", "head"):
        return [(query, None) for query in QUERIES.get(route, [""])]
    if verb == "patch":
        return [("", {"title": "x"}), ("", {"pinned": True, "expect_revision": 9})]
    if verb == "put":
        return [("", {"value": 1})]
    if verb == "post":
        return [("", body) for body in BODIES.get(route, [SEND])]
    return [("", SEND)]


def ask(client, verb, route, names, query, body):
    """Return the response and its SQL statements, both without these names and times."""
    path = route.replace("<int:seq>", "1").replace("<turn>", "t0")
    for part, name in names.items():
        path = path.replace(part, name)
    data = json.dumps(body).replace("<key>", names["<key>"])
    sent = {} if body is None else {"data": data, "content_type": "application/json"}
    if verb == "trace":
        sent = {}
    with CaptureQueriesContext(connection) as queries:
        answer = getattr(client, verb)(f"/api/{path}{query}", **sent)
    varying = r"'\d{4}-\d\d-\d\d[^']*'|(?<=SAVEPOINT ).*"  # times and names of savepoints
    statements = [re.sub(varying, "", query["sql"]) for query in queries]
    # By its place: the number of an entry can also be the primary key of a user.
    statements = [re.sub(r"(?<=auditentry.\..id. = )\d+", "UNDO", sql) for sql in statements]
    statements = [sql.replace(names["<key>"], "KEY") for sql in statements]
    text = answer.getvalue().decode().replace(names["<key>"], "KEY")
    return answer, (answer.status_code, sorted(answer.items()), text), statements


@contextmanager
def rolled_back():
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def test_the_table_has_every_url():
    assert {str(url.pattern) for url in (*resources, *search_resources)} == set(URLS)


@pytest.mark.parametrize("route", URLS)
def test_each_method_has_its_status_for_an_own_session(ann, talks, route):
    for verb in VERBS:
        query, body = requests_of(route, verb)[0]
        with rolled_back():
            _, (status, _, text), _ = ask(ann, verb, route, talks[0].names, query, body)
        assert (verb, status) == (verb, URLS[route].get(verb, 405))
        assert SECRET not in text


@pytest.mark.parametrize(
    "route", [route for route in URLS if "<" in f"{route} {BODIES.get(route)}"]
)
def test_another_users_session_is_answered_like_an_unknown_one(ann, talks, route):
    foreign = talks[1]
    for verb in VERBS:
        for query, body in requests_of(route, verb):
            (_, shown, statements), (_, unknown, unknown_statements) = (
                ask(ann, verb, route, names, query, body)
                for names in (foreign.names, unknown_names())
            )
            assert (verb, shown) == (verb, unknown)
            assert statements == unknown_statements
            assert shown[0] in {404, 405, expected_of(body)}
            assert SECRET not in str(shown)
    before = foreign.session
    assert Session.objects.filter(pk=before.pk).values().get() == session_columns(before)
    assert list(Turn.objects.values_list("client_id", "status")) == [("t0", "complete")] * 2
    assert [found.entry_pk for found in services.list_removed(by=Actor.user(before.owner))] == [
        foreign.undo
    ]
    assert not Feedback.objects.exists()


@pytest.mark.parametrize("route", URLS)
def test_no_list_reveals_another_user(ann, talks, route):
    for query, _ in requests_of(route, "get"):
        _, (_, _, text), _ = ask(ann, "get", route, talks[0].names, query, None)
        assert SECRET not in text
        assert talks[1].session.key not in text


def test_the_key_of_another_users_session_can_be_opened(ann, talks):
    """Each user has their own keys, so opening one reveals nothing about another user's."""
    keys = (talks[1].session.key, str(uuid.uuid4()))
    seen = []
    for key in keys:
        answer, _, _ = ask(
            ann, "post", "sessions/", {"<key>": key}, "", {"key": key, "title": "mine"}
        )
        fields = answer.json()
        varying = {name: fields.pop(name) for name in ("epoch", "created_at")}
        assert set(varying) == {"epoch", "created_at"}
        seen.append((answer.status_code, {**fields, "key": ""}))
    assert seen[0] == seen[1]
    assert seen[0][0] == 201
    assert Session.objects.filter(key=talks[1].session.key).count() == 2
    assert Message.stored.filter(session__title="mine").count() == 0


@pytest.mark.parametrize("route", [route for route in URLS if route != "health/"])
def test_without_a_login_all_sessions_get_the_same_answer(talks, route):
    for verb in VERBS:
        for query, body in requests_of(route, verb):
            answers = [
                ask(Client(), verb, route, names, query, body)
                for names in (talks[0].names, talks[1].names, unknown_names())
            ]
            assert answers[0][1:] == answers[1][1:] == answers[2][1:], verb
            assert answers[0][0].status_code in (401, 405)
