"""People export and erase their own data over REST."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from django.test import AsyncClient

from chatmemory import services
from chatmemory.formats import exporting, reading
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.services import Actor
from tests.api.calls import TALK, post, problem, talk_of
from tests.factories import make_messages, make_user

pytestmark = pytest.mark.django_db

EXPORT = "/api/own-data/export/"
ERASE = "/api/own-data/erase/"
PAST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def various(ann):
    """Ann's sessions in several states, and one of Bob's."""
    for key in ("plain", "held", "archived", "purged"):
        talk_of(ann, f"{key} question", f"{key} answer", key=key, title=f"{key} title")
    Session.objects.filter(key="held").update(held_at=PAST)
    Session.objects.filter(key="archived").update(archived_at=PAST)
    services.purge_session(session_key="purged", by=Actor.user(ann), reason="")
    talk_of(make_user("bob"), "foreign", "foreign")


def allow(settings, *actions):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": actions}


def exported(api, format="json"):
    answer = api.get(EXPORT, {"format": format})
    assert answer.status_code == 200
    return answer.getvalue().decode()


# Export


def test_an_export_has_all_sessions_of_its_owner_and_no_other(api, various):
    sessions = json.loads(exported(api))
    assert [session["key"] for session in sessions] == ["plain", "held", "archived", "purged"]
    for session in sessions:
        texts = [message["text"] for message in session["messages"]]
        assert texts == [f"{session['key']} question", f"{session['key']} answer"]
        assert session["title"] == f"{session['key']} title"
    assert sessions[1]["states"] == ["on hold since 2026-01-01 00:00:00"]
    assert sessions[0]["messages"][0].items() >= {"number": 1, "role": "user", "states": []}.items()


def test_an_export_as_markdown_is_readable(api, various):
    text = exported(api, "markdown")
    assert text.count("\n# ") + text.startswith("# ") == 4
    assert "# ` plain title ` · ` plain `" in text
    assert "## 1: user, 2" in text
    assert "```\nplain question\n```" in text
    assert "foreign" not in text


@pytest.mark.parametrize("format", ["json", "markdown"])
def test_an_export_has_nothing_that_only_the_host_reads(api, ann, format):
    where = {"session_key": "talk", "by": Actor.user(ann)}
    hidden = {"instructions": "secret prompt", "metadata": {"secret": "value"}}
    services.open_session(**where, **hidden)
    services.tag_session(
        session_key="talk",
        tag="secret-tag",
        by=Actor.server("test"),
        scope=services.user_scope(ann),
        reason="",
    )
    services.add_note(
        session_key="talk",
        text="secret note",
        by=Actor.server("test"),
        scope=services.user_scope(ann),
    )
    call = {"name": "look", "args": {"q": "secret call"}, "id": "1"}
    answer = {"role": "assistant", "content": "done", "tool_calls": [call]}
    services.append_messages(**where, messages=[*make_messages("hi"), answer])
    text = exported(api, format)
    assert "done" in text
    assert "secret" not in text


def test_an_export_is_a_file_that_may_not_be_stored(api, talk):
    names = {"json": "chats.json", "markdown": "chats.md"}
    types = {"json": "application/json", "markdown": "text/markdown"}
    for format, name in names.items():
        answer = api.get(EXPORT, {"format": format})
        assert answer["Content-Disposition"] == f'attachment; filename="{name}"'
        assert answer["Content-Type"] == f"{types[format]}; charset=utf-8"
        assert answer["Cache-Control"] == "no-store"


def test_an_export_without_sessions_is_valid(api):
    assert json.loads(exported(api)) == []
    assert exported(api, "markdown") == ""


def test_an_export_is_audited_before_its_first_byte(api, ann, talk, monkeypatch):
    def refuse(sessions):
        yield sessions.no_such_method()  # a read would fail

    monkeypatch.setattr(exporting, "read_sessions", refuse)
    assert api.get(EXPORT).status_code == 200
    entry = AuditEntry.objects.get(action="export")
    assert (entry.actor_id, entry.reason) == (str(ann.pk), "requested by the owner")
    assert entry.counts == {"sessions": 1, "messages": 2, "format": "own-json"}


def test_exports_are_limited_as_writes_are(api, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WRITES_PER_MINUTE": 2}
    assert [api.get(EXPORT).status_code for _ in range(3)] == [200, 200, 429]


def test_an_export_is_read_in_pieces(api, ann, monkeypatch):
    talk_of(ann, *map(str, range(50)))
    monkeypatch.setattr(reading, "PAGE", 5)
    answer = api.get(EXPORT)
    pieces = iter(answer.streaming_content)
    begin = b"".join(next(pieces) for _ in range(5))
    assert b'"text":"2"' in begin.replace(b" ", b"")
    # What was not read yet shows this change: nothing is read in advance.
    Message.stored.filter(seq=40).update(text="late")
    assert b"late" in b"".join(pieces)


async def test_an_asgi_server_streams_an_export(ann, talk):
    client = AsyncClient()
    await client.aforce_login(ann)
    answer = await client.get(EXPORT)
    assert answer.is_async
    text = b"".join([piece async for piece in answer.streaming_content])
    assert [session["key"] for session in json.loads(text)] == ["talk"]


@pytest.mark.regression
def test_an_export_can_be_accepted_as_markdown_alone(api, talk):
    markdown = {"headers": {"accept": "text/markdown"}}
    answer = api.get(f"{EXPORT}?format=markdown", **markdown)
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/markdown; charset=utf-8")
    assert problem(api.get(f"{EXPORT}?format=csv", **markdown)) == (400, "bad_field", "format")
    assert api.get(EXPORT, headers={"accept": "text/html"}).status_code == 406


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("format=csv", "bad_field", "format"),
        ("format=", "bad_field", "format"),
        ("as=json", "unknown_field", "as"),
        ("scope=user:2", "unknown_field", "scope"),
    ],
)
def test_a_bad_export_is_rejected(api, talk, query, code, field):
    assert problem(api.get(f"{EXPORT}?{query}")) == (400, code, field)
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("override", ["format", "as", None])
def test_the_format_of_an_export_is_not_the_one_of_rest_framework(api, talk, settings, override):
    """Its `format` selects a renderer, and is ignored by the other views."""
    settings.REST_FRAMEWORK = {"URL_FORMAT_OVERRIDE": override}
    accepts = {"headers": {"accept": "application/json"}}
    answer = api.get(f"{EXPORT}?format=markdown", **accepts)
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/markdown; charset=utf-8")
    assert problem(api.get(f"{EXPORT}?format=api", **accepts)) == (400, "bad_field", "format")
    twice = api.get(f"{EXPORT}?format=json&format=markdown", **accepts)
    assert problem(twice) == (400, "bad_field", "format")


def test_self_service_that_is_off_is_forbidden(api, ann, talk, settings):
    erase = {"confirm": "ann"}
    assert problem(post(api, ERASE, erase)) == (403, "forbidden", None)  # the default
    allow(settings)
    assert problem(api.get(EXPORT)) == (403, "forbidden", None)
    assert problem(post(api, ERASE, erase)) == (403, "forbidden", None)
    allow(settings, "erase")
    assert problem(api.get(EXPORT)) == (403, "forbidden", None)
    assert not AuditEntry.objects.exists()


# Erasure


def test_an_erasure_deletes_all_sessions_but_those_on_hold(api, ann, various, settings):
    allow(settings, "erase")
    answer = post(api, ERASE, {"confirm": "ann"})
    assert (answer.status_code, answer.json()) == (
        200,
        {"sessions": 3, "messages": 6, "turns": 0, "held": ["held"]},
    )
    assert set(Session.objects.values_list("key", flat=True)) == {"held", "talk"}
    receipt = AuditEntry.objects.filter(action="erase", session_pk__isnull=True).get()
    assert (receipt.actor_id, receipt.reason) == (str(ann.pk), "requested by the owner")
    again = post(api, ERASE, {"confirm": "ann"})
    assert again.json() == {"sessions": 0, "messages": 0, "turns": 0, "held": ["held"]}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (400, "bad_field", "confirm")),
        ({"confirm": "bob"}, (400, "bad_field", "confirm")),
        ({"confirm": "ANN"}, (400, "bad_field", "confirm")),
        ({"confirm": ""}, (400, "bad_field", "confirm")),
        ({"confirm": True}, (400, "bad_field", "confirm")),
        ({"confirm": "ann", "scope": "user:2"}, (400, "unknown_field", "scope")),
        ([], (400, "bad_shape", None)),
        (b"{", (400, "bad_json", None)),
    ],
)
def test_an_erasure_that_is_not_confirmed_deletes_nothing(api, talk, settings, body, expected):
    allow(settings, "erase")
    assert problem(post(api, ERASE, body)) == expected
    assert api.get(TALK).status_code == 200
    assert not AuditEntry.objects.exists()
