"""Calls of the REST API in Django's test client, and what they return."""

from __future__ import annotations

import json

from chatmemory import services
from chatmemory.services import Actor
from tests.factories import make_messages, make_session

SESSIONS = "/api/sessions/"
TALK = "/api/sessions/talk/"
MESSAGES = "/api/sessions/talk/messages/"
JSON = "application/json"
PROBLEM = "application/problem+json"


def talk_of(user, *texts, key="talk", **columns):
    make_session(key, owner=user, **columns)
    by = Actor.user(user)
    services.append_messages(
        session_key=key, messages=make_messages(*(texts or ("hi", "hello"))), by=by
    )
    return services.get_session(session_key=key, by=by)


def post(client, address, body, **headers):
    """Post a value as JSON, or bytes unchanged."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(address, data, content_type=JSON, headers=headers)


def send(client, text="what now?", *, to=MESSAGES, **fields):
    return post(client, to, {"client_id": "c1", "text": text, **fields})


def problem(answer):
    """Return status, code and field of an error response."""
    body = answer.json()
    assert answer["Content-Type"] == PROBLEM
    assert body["status"] == answer.status_code
    return answer.status_code, body["code"], body.get("field")
