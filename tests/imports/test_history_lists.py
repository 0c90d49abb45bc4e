"""The command that imports LangChain's histories, on lists of Redis."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from langchain_core.messages import AIMessage, HumanMessage, message_to_dict

from chatmemory.imports import histories, redis_lists
from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.models import Session
from tests.factories import make_user
from tests.imports.histories import MESSAGES

pytestmark = [pytest.mark.django_db, pytest.mark.redis]

HI = [HumanMessage("Hi"), AIMessage("Hello")]


@pytest.fixture
def server(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def prefix(server):
    """A prefix of keys, with characters that patterns of keys interpret."""
    prefix = f"[a-z]*{uuid.uuid4()}:"
    yield prefix
    for key in [key for key in server.scan_iter() if key.startswith(prefix.encode())]:
        server.delete(key)


@pytest.fixture
def ann():
    return make_user("ann")


@pytest.fixture
def push(server, prefix):
    """Store messages as `RedisChatMessageHistory` of langchain-community 0.4.2 does."""

    def push(session_id, messages):
        for message in messages:
            server.lpush(f"{prefix}{session_id}", json.dumps(message_to_dict(message)))

    return push


@pytest.fixture
def move(ann, prefix, redis_url, capsys):
    """Import the lists; return the report."""

    def move(**options: Any) -> dict[str, Any]:
        given = {"redis": redis_url, "key_prefix": prefix, "owner": "ann", **options}
        call_command("chatmemory_import_langchain", by="olga", reason="a move", json=True, **given)
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    return move


def read(owner, key="a"):
    return DjangoChatMessageHistory(key, owner=owner).messages


def test_an_address_may_ask_for_decoded_answers(move, push, ann, redis_url):
    push("a", HI)
    separator = "&" if "?" in redis_url else "?"
    assert move(redis=f"{redis_url}{separator}decode_responses=true")["new"] == 1
    assert read(ann) == HI


def test_lists_are_imported_without_loss(move, push, ann):
    push("a", MESSAGES)
    push("b", HI)
    report = move()
    assert (report["new"], report["messages"]) == (2, len(MESSAGES) + len(HI))
    assert read(ann) == MESSAGES
    assert read(ann, "b") == HI
    assert Session.objects.get(key="a").origin == "langchain-redis:a"


def test_a_second_run_appends_what_is_new(move, push, ann, monkeypatch):
    monkeypatch.setattr(redis_lists, "PAGE", 2)
    push("a", HI)
    move()
    push("a", MESSAGES)
    assert move()["more"] == {"with new messages": 1}
    assert move()["more"] == {}
    assert read(ann) == [*HI, *MESSAGES]


def test_other_keys_are_not_read(move, push, server, prefix, ann):
    push("a", HI)
    server.set(f"{prefix}b", "a text")
    server.lpush(prefix.replace("[a-z]*", "ab"), "another prefix, which a pattern would match")
    try:
        assert move()["new"] == 1
    finally:
        server.delete(prefix.replace("[a-z]*", "ab"))


@pytest.mark.parametrize(
    ("key", "text", "code"),
    [(b"b", b"\xff", "bad_json"), (b"b", b"{", "bad_json"), (b"\xff", b"{}", "bad_text")],
)
def test_a_bad_list_is_refused_and_hides_no_other(
    move, push, server, prefix, capsys, key, text, code
):
    push("a", HI)
    server.lpush(prefix.encode() + key, text)
    with pytest.raises(CommandError, match="1 invalid history skipped"):
        move()
    assert f"({code})" in capsys.readouterr().err
    assert Session.objects.get().key == "a"


@pytest.mark.parametrize("remove", ["all", "oldest"])
def test_a_list_that_shrinks_while_it_is_read_is_refused(
    move, push, server, prefix, capsys, monkeypatch, remove
):
    push("a", MESSAGES)
    push("b", HI)
    monkeypatch.setattr(redis_lists, "PAGE", 2)
    convert = histories._entry_of

    def shrink(stored: Any, text: Any) -> Any:
        if stored.id == "2" and server.llen(f"{prefix}a") == len(MESSAGES):
            server.delete(f"{prefix}a") if remove == "all" else server.rpop(f"{prefix}a")
        return convert(stored, text)

    monkeypatch.setattr(histories, "_entry_of", shrink)
    with pytest.raises(CommandError, match="1 invalid history"):
        move()
    assert "deleted while it was read" in capsys.readouterr().err
    assert Session.objects.get().key == "b"


def test_a_server_that_fails_is_an_error(move):
    with pytest.raises(CommandError, match=r"Redis failed: ConnectionError\. Run this again"):
        move(redis="redis://127.0.0.1:1/0")
