"""Repeat each request that writes on a real server, after the connection was cut."""

from __future__ import annotations

import contextlib
import json
import socket
import uuid
from collections.abc import Callable
from functools import partial
from http.client import HTTPResponse
from typing import Any

import pytest

from chatmemory import services
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import Actor
from tests.factories import make_messages
from tests.servers import DEADLINE, person_with_talk, start_servers, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

ann = person_with_talk
serve = start_servers
KEY = str(uuid.uuid4())
TOKEN = "a" * 32


def sent(server, person, method, path, body):
    """Send a request, and return its connection."""
    data = b"" if body is None else json.dumps(body).encode()
    head = [
        f"{method} /api/{path} HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        f"Cookie: sessionid={person.cookie}; csrftoken={TOKEN}",
        f"X-CSRFToken: {TOKEN}",
        f"Content-Length: {len(data)}",
        *([] if body is None else ["Content-Type: application/json"]),
    ]
    line = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE)
    line.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + data)
    return contextlib.closing(line)


def status_of(line):
    """Read the answer; return its status."""
    answer = HTTPResponse(line)
    answer.begin()
    answer.read()
    return answer.status


def stored():
    """Return what a repeated request must not change."""
    return (
        list(Session.objects.order_by("pk").values()),
        list(Message.stored.order_by("pk").values()),
        list(Turn.objects.order_by("pk").values("client_id", "status", "stop_requested_at")),
        list(AuditEntry.objects.order_by("pk").values("action", "session_pk")),
    )


@pytest.fixture
def talk(ann):
    """A session with messages and a turn that waits behind one of another process."""
    where = {"session_key": "talk", "by": Actor.user(ann.user)}
    services.append_messages(**where, messages=make_messages("a", "b"))
    services.admit_turn(**where, client_id="c1", content="hi", owner="another")
    services.admit_turn(**where, client_id="c2", content="hi")
    return where


def unchanged(where):
    return ""


def archived(where):
    services.archive_session(**where, reason="")
    return ""


def purged(where):
    return str(services.purge_session(**where, reason="").pk)


def is_in_audit(action):
    return AuditEntry.objects.filter(action=action).exists()


Case = tuple[str, str, Any, Callable[[], object], int, Callable[..., str]]
CASES: dict[str, Case] = {
    "open": (
        "POST",
        "sessions/",
        {"key": KEY},
        Session.objects.filter(key=KEY).exists,
        200,
        unchanged,
    ),
    "rename": (
        "PATCH",
        "sessions/talk/",
        {"title": "new", "pinned": True},
        Session.objects.filter(title="new").exists,
        200,
        unchanged,
    ),
    "archive": (
        "POST",
        "sessions/talk/archive/",
        {},
        Session.objects.filter(archived_at__isnull=False).exists,
        200,
        unchanged,
    ),
    "unarchive": (
        "POST",
        "sessions/talk/unarchive/",
        {},
        Session.objects.filter(archived_at__isnull=True).exists,
        200,
        archived,
    ),
    "purge": ("DELETE", "sessions/talk/", None, partial(is_in_audit, "purge"), 404, unchanged),
    "restore": (
        "POST",
        "removed/{}/restore/",
        {},
        partial(is_in_audit, "restore"),
        409,
        purged,
    ),
    "send": (
        "POST",
        "sessions/talk/messages/",
        {"client_id": "c3", "text": "hi"},
        Turn.objects.filter(client_id="c3").exists,
        200,
        unchanged,
    ),
    "stop": (
        "POST",
        "sessions/talk/stop/",
        {"turn": "c2"},
        Turn.objects.filter(status="cancelled").exists,
        200,
        unchanged,
    ),
    "stop the running turn": (
        "POST",
        "sessions/talk/stop/",
        {},
        Turn.objects.filter(stop_requested_at__isnull=False).exists,
        200,
        unchanged,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_request_that_is_repeated_after_a_cut_connection_changes_nothing(ann, talk, serve, name):
    method, path, body, has_effect, expected, prepare = CASES[name]
    path = path.format(prepare(talk))
    [server] = serve()
    # So that neither a sweep nor a new run changes the turns meanwhile.
    Turn.objects.filter(client_id="c1").update(lease_until="2100-01-01T00:00:00Z")
    with sent(server, ann, method, path, body):
        wait_for(lambda: bool(has_effect()), f"{name} had no effect")
    before = stored()
    with sent(server, ann, method, path, body) as line:
        assert status_of(line) == expected
    assert stored() == before
