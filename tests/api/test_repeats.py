"""Repeat each request that writes on a real server, after the connection was cut."""

from __future__ import annotations

import contextlib
import json
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPResponse
from typing import Any

import pytest

from chatmemory import services
from chatmemory.api.base import WRITES
from chatmemory.api.operations import OPERATIONS
from chatmemory.models import AuditEntry, Feedback, Message, Session, Turn
from chatmemory.services import Actor
from tests.factories import make_messages, make_session, make_user
from tests.servers import DEADLINE, sign_in, started, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

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
        list(Feedback.objects.order_by("pk").values()),
        list(AuditEntry.objects.order_by("pk").values("action", "session_pk")),
    )


@pytest.fixture(scope="module")
def server(django_db_setup, tmp_path_factory):
    """A server that the tests of this module share."""
    with started(tmp_path_factory.mktemp("server")) as start:
        [server] = start(SELF_SERVICE=["erase"])
        yield server


@pytest.fixture
def ann(transactional_db):
    person = sign_in(make_user("ann"))
    make_session(owner=person.user)
    return person


@pytest.fixture
def talk(ann):
    """A session with messages and a turn that waits behind one of another process."""
    where = {"session_key": "talk", "by": Actor.user(ann.user)}
    services.append_messages(**where, messages=make_messages("a", "b"))
    session = services.get_session(**where)
    Message.stored.update(turn=1)
    Turn.objects.create(
        session=session, client_id="t0", status="complete", user_seq=1, epoch=session.epoch
    )
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


def rated(where):
    services.set_feedback(**where, turn="t0", value=-1)
    return ""


def is_in_audit(action):
    return AuditEntry.objects.filter(action=action).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A request, and what it and its repeat do."""

    request: tuple[str, str, Any]
    """Its method, address and body."""
    has_effect: Callable[[], object]
    """Whether the first request, whose answer is lost, has stored its effect."""
    repeated: int = 200
    """The status of the repeat."""
    prepare: Callable[..., object] = unchanged
    """Prepares the session; its result replaces {} in the address."""
    adds: tuple[str, ...] = ()
    """The actions of the audit entries that a repeat adds: evidence that a person asked again."""


CASES: dict[str, Case] = {
    "open_session": Case(
        request=("POST", "sessions/", {"key": KEY}),
        has_effect=Session.objects.filter(key=KEY).exists,
    ),
    "update_session": Case(
        request=("PATCH", "sessions/talk/", {"title": "new", "pinned": True}),
        has_effect=Session.objects.filter(title="new").exists,
    ),
    "archive_session": Case(
        request=("POST", "sessions/talk/archive/", {}),
        has_effect=Session.objects.filter(archived_at__isnull=False).exists,
    ),
    "unarchive_session": Case(
        request=("POST", "sessions/talk/unarchive/", {}),
        has_effect=Session.objects.filter(archived_at__isnull=True).exists,
        prepare=archived,
    ),
    "purge_session": Case(
        request=("DELETE", "sessions/talk/", None),
        has_effect=partial(is_in_audit, "purge"),
        repeated=404,
    ),
    "restore_session": Case(
        request=("POST", "removed/{}/restore/", {}),
        has_effect=partial(is_in_audit, "restore"),
        repeated=409,
        prepare=purged,
    ),
    "send_message": Case(
        request=("POST", "sessions/talk/messages/", {"client_id": "c3", "text": "hi"}),
        has_effect=Turn.objects.filter(client_id="c3").exists,
    ),
    "set_feedback": Case(
        request=("PUT", "sessions/talk/turns/t0/feedback/", {"value": 1, "reason": "short"}),
        has_effect=Feedback.objects.exists,
    ),
    "withdraw_feedback": Case(
        request=("DELETE", "sessions/talk/turns/t0/feedback/", None),
        has_effect=lambda: not Feedback.objects.exists(),
        prepare=rated,
    ),
    "stop_turn": Case(
        request=("POST", "sessions/talk/stop/", {"turn": "c2"}),
        has_effect=Turn.objects.filter(status="cancelled").exists,
    ),
    "stop_turn, the running one": Case(
        request=("POST", "sessions/talk/stop/", {}),
        has_effect=Turn.objects.filter(stop_requested_at__isnull=False).exists,
    ),
    "erase_own_data": Case(
        request=("POST", "own-data/erase/", {"confirm": "ann"}),
        has_effect=AuditEntry.objects.filter(action="erase", session_pk__isnull=True).exists,
        adds=("erasure_started", "erase"),
    ),
}
NOT_REPEATED = {"issue_ticket", "create_visitor", "erase_visitor", "adopt_visitor"}
"""A repeated request for a ticket issues another one: a lost ticket opens nothing. The repeats of a
visitor's requests, whose credential is a cookie, are in test_visitors.py and test_adoption.py."""


def test_each_operation_that_writes_is_repeated():
    writing = {each.name for (_, method), each in OPERATIONS.items() if method in WRITES}
    assert {name.partition(",")[0] for name in CASES} | NOT_REPEATED == writing


@pytest.mark.parametrize("name", CASES)
def test_a_request_that_is_repeated_after_a_cut_connection_changes_nothing(ann, talk, server, name):
    case = CASES[name]
    method, path, body = case.request
    path = path.format(case.prepare(talk))
    # So that neither a sweep nor a new run changes the turns meanwhile.
    Turn.objects.filter(client_id="c1").update(lease_until="2100-01-01T00:00:00Z")
    with sent(server, ann, method, path, body):
        wait_for(lambda: bool(case.has_effect()), f"{name} had no effect")
    before = stored()
    with sent(server, ann, method, path, body) as line:
        assert status_of(line) == case.repeated
    *rows, entries = stored()
    assert rows == [*before[:-1]]
    assert entries[: len(before[-1])] == before[-1]
    assert tuple(entry["action"] for entry in entries[len(before[-1]) :]) == case.adds
