"""Every REST URL with every method: responses and SQL do not reveal another user's session."""

from __future__ import annotations

import json
import re
import uuid

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.api.urls import urlpatterns
from chatmemory.models import Message, Session, Turn
from chatmemory.services import Actor
from tests.factories import make_messages, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.regression]

SECRET = "classified"
SEND = {"client_id": "c1", "text": "hi"}
VERBS = ("get", "head", "options", "post", "put", "patch", "delete", "trace")
READ_ONLY = {"get": 200, "head": 200}
URLS = {
    "sessions/": {"get": 200, "head": 200, "post": 201},
    "sessions/<key>/": {**READ_ONLY, "patch": 200},
    "sessions/<key>/messages/": {"get": 200, "head": 200, "post": 202},
    "sessions/<key>/messages/<int:seq>/": READ_ONLY,
    "sessions/<key>/messages/<int:seq>/versions/": READ_ONLY,
    "tickets/": {"post": 201},
}
"""The status of each method for the user's own session; every other method is 405."""
BODIES = {
    "sessions/": [{}, {"title": "x"}],
    "sessions/<key>/messages/": [SEND, {**SEND, "epoch": 1}, {**SEND, "wait": 0}, {}],
    "tickets/": [{}],
}
QUERIES = {
    "sessions/": ["", "?limit=1", "?cursor=.9"],
    "sessions/<key>/messages/": ["", "?after=0", "?before=9&limit=1"],
}


def expected_of(body):
    """The status of a POST to an unknown session, if it is not 404."""
    if body == {}:
        return 400  # the shape is checked first
    return 409 if body and "epoch" in body else 404  # an epoch claims that there was one


@pytest.fixture
def talks():
    """Return sessions of two users, each with a UUID as key, and an unknown key."""
    return [talk_of(make_user("ann"), "plain"), talk_of(make_user("bob"), SECRET)]


@pytest.fixture
def ann(talks):
    client = Client()
    client.force_login(talks[0].owner)
    return client


def talk_of(user, word):
    where = {"session_key": str(uuid.uuid4()), "by": Actor.user(user)}
    hidden = {"instructions": f"{word} prompt", "metadata": {"word": word}}
    services.open_session(**where, title=f"{word} title", **hidden)
    services.append_messages(**where, messages=make_messages(f"{word} question", f"{word} answer"))
    return services.get_session(**where)


def requests_of(route, verb):
    """Return the query strings and bodies for a URL."""
    if verb in ("get", "head"):
        return [(query, None) for query in QUERIES.get(route, [""])]
    if verb == "patch":
        return [("", {"title": "x"})]
    if verb == "post":
        return [("", body) for body in BODIES.get(route, [SEND])]
    return [("", SEND)]


def ask(client, verb, route, key, query, body):
    """Return the response and its SQL statements, both without this key and times."""
    path = route.replace("<key>", key).replace("<int:seq>", "1")
    sent = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
    if verb == "trace":
        sent = {}
    with CaptureQueriesContext(connection) as queries:
        answer = getattr(client, verb)(f"/api/{path}{query}", **sent)
    varying = r"'\d{4}-\d\d-\d\d[^']*'|(?<=SAVEPOINT ).*"  # times and names of savepoints
    statements = [re.sub(varying, "", query["sql"]) for query in queries]
    text = answer.content.decode()
    shown = (answer.status_code, sorted(answer.items()), text.replace(key, "KEY"))
    return answer, shown, [sql.replace(key, "KEY") for sql in statements]


def test_the_table_has_every_url():
    assert {str(url.pattern) for url in urlpatterns} == set(URLS)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("route", URLS)
def test_each_method_has_its_status_for_an_own_session(ann, talks, route, verb):
    query, body = requests_of(route, verb)[0]
    answer, _, _ = ask(ann, verb, route, talks[0].key, query, body)
    assert answer.status_code == URLS[route].get(verb, 405)
    assert SECRET not in answer.content.decode()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("route", [route for route in URLS if "<key>" in route])
def test_another_users_session_is_answered_like_an_unknown_one(ann, talks, route, verb):
    foreign = talks[1]
    for query, body in requests_of(route, verb):
        answers = [
            ask(ann, verb, route, key, query, body) for key in (foreign.key, str(uuid.uuid4()))
        ]
        (_, shown, statements), (_, unknown, unknown_statements) = answers
        assert shown == unknown
        assert statements == unknown_statements
        assert shown[0] in {404, 405, expected_of(body)}
        assert SECRET not in str(shown)
    foreign.refresh_from_db()
    assert (foreign.last_seq, foreign.removed_at) == (2, None)
    assert not Turn.objects.exists()


@pytest.mark.parametrize("route", URLS)
def test_no_list_reveals_another_user(ann, talks, route):
    for query, _ in requests_of(route, "get"):
        answer, _, _ = ask(ann, "get", route, talks[0].key, query, None)
        assert SECRET not in answer.content.decode()
        assert talks[1].key not in answer.content.decode()


def test_the_key_of_another_users_session_can_be_opened(ann, talks):
    """Each user has their own keys, so opening one reveals nothing about another user's."""
    keys = (talks[1].key, str(uuid.uuid4()))
    seen = []
    for key in keys:
        answer, _, _ = ask(ann, "post", "sessions/", key, "", {"key": key, "title": "mine"})
        fields = answer.json()
        varying = {name: fields.pop(name) for name in ("epoch", "created_at")}
        assert set(varying) == {"epoch", "created_at"}
        seen.append((answer.status_code, {**fields, "key": ""}))
    assert seen[0] == seen[1]
    assert seen[0][0] == 201
    assert Session.objects.filter(key=talks[1].key).count() == 2
    assert Message.stored.filter(session__title="mine").count() == 0


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("route", URLS)
def test_without_a_login_all_sessions_get_the_same_answer(talks, route, verb):
    for query, body in requests_of(route, verb):
        answers = [
            ask(Client(), verb, route, key, query, body)
            for key in (talks[0].key, talks[1].key, str(uuid.uuid4()))
        ]
        assert answers[0][1:] == answers[1][1:] == answers[2][1:]
        assert answers[0][0].status_code in (401, 405)
