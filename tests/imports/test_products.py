"""Each shape of the four products becomes the right roles, texts, times and models."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command

from chatmemory import services
from chatmemory.imports.conversations import moment
from chatmemory.models import Message, Session
from chatmemory.services import user_scope
from chatmemory.services.integrity.sessions import check_integrity
from tests.imports.samples import SAMPLES, TIME, gpt, gpt_message, libre_message

BEGIN = datetime.fromtimestamp(TIME, UTC)


def lost_in(report: dict[str, Any]) -> dict[str, int]:
    """Return what was lost, by kind."""
    names = (name for name in report["more"] if name.startswith("lost "))
    return {name[5:].replace(" ", "_"): report["more"][name] for name in names}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_becomes_the_messages_of_its_branch(name, run, owner):
    sample = SAMPLES[name]
    report = run(sample.content, name=sample.name)
    assert report["new"] == Session.objects.count() == sample.sessions
    assert lost_in(report) == sample.lost
    session = Session.objects.get(scope=user_scope(owner), key=sample.key)
    assert (session.owner, session.title) == (owner, sample.title)
    rows = list(Message.objects.filter(session=session).order_by("seq"))
    assert [(row.role, row.text) for row in rows] == sample.rows
    if sample.seconds:
        expected = [BEGIN + timedelta(seconds=after) for after in sample.seconds]
        assert [row.created_at for row in rows] == expected
        assert session.last_message_at == expected[-1]
        assert session.created_at == BEGIN
    models = {row.model for row in rows if row.role == "assistant"} - {""}
    assert models == set(sample.models)
    assert not list(check_integrity())


@pytest.mark.parametrize("name", SAMPLES)
def test_the_product_can_be_named_and_a_second_import_changes_nothing(name, run):
    sample = SAMPLES[name]
    product = sample.key.partition(":")[0]
    run(sample.content, name=sample.name, format=product)
    before = [*Session.objects.order_by("pk").values(), *Message.stored.order_by("pk").values()]
    report = run(sample.content, name="other.json")
    assert (report["new"], report["existing"]) == (0, sample.sessions)
    assert lost_in(report) == {}
    after = [*Session.objects.order_by("pk").values(), *Message.stored.order_by("pk").values()]
    assert after == before


def test_tool_calls_keep_their_arguments(run):
    run(SAMPLES["claude tools and thinking"].content)
    row = Message.objects.get(role="assistant", text="I look.")
    call = {"name": "weather", "args": {"city": "Oslo"}, "id": "t1", "type": "tool_call"}
    assert row.plain()["tool_calls"] == [call]
    assert Message.objects.get(role="tool").plain()["tool_call_id"] == "t1"


def test_a_dry_run_stores_nothing(run):
    sample = SAMPLES["chatgpt split ZIP"]
    report = run(sample.content, dry_run=True)
    assert (report["new"], report["messages"]) == (2, 3)
    assert not Session.objects.exists()


def test_the_prefix_replaces_the_product_in_the_key(run):
    run(SAMPLES["claude list"].content, prefix="old")
    assert Session.objects.get().key == "old:k1"


def test_the_person_can_continue_the_conversation(run, owner):
    run(SAMPLES["chatgpt list"].content)
    by = services.Actor.user(owner)
    services.append_messages(
        session_key="chatgpt:g1", messages=[{"role": "user", "content": "And now?"}], by=by
    )
    page = services.read_history(session_key="chatgpt:g1", by=by)
    assert [row.text for row in page.rows] == ["Sun?", "Rain.", "And now?"]


def test_the_report_for_people_names_what_is_not_kept(owner, tmp_path, capsys):
    file = tmp_path / "export.json"
    file.write_bytes(SAMPLES["open-webui two models and files"].content)
    call_command("chatmemory_import", str(file), owner="mira", by="olga", reason="a move")
    expected = (
        "1 conversation, 2 messages; 1 new, 0 already stored; "
        "lost branch messages: 1; lost images: 1; lost files: 1"
    )
    assert capsys.readouterr().out.strip() == expected


def test_a_conversation_without_messages_is_counted(run):
    report = run([gpt(None), gpt(gpt_message("user", "a"), id_="g2")])
    assert (report["more"], report["new"], report["bad"]) == ({"without messages": 1}, 1, 0)


def test_a_long_branch_of_librechat_is_read(run):
    """Each message is nested in the one before it, deeper than Python's own writer can go."""
    one = libre_message(0, "x", messageId="l%d", children=["%s"])
    head, _, tail = json.dumps(one).partition('"%s"')
    count = 1_500
    tree = "".join(head % number for number in range(count)) + tail * count
    content = f'{{"conversationId": "b1", "recursive": true, "messagesTree": [{tree}]}}'.encode()
    assert run(content)["messages"] == 1_500


def test_json_is_read_from_standard_input(owner, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.write(writing, SAMPLES["claude list"].content)
    os.close(writing)
    with open(reading, "rb") as stream:  # noqa: PTH123  # a descriptor, not a path
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
        call_command("chatmemory_import", "-", owner="mira", by="olga", reason="a move")
    assert capsys.readouterr().out.startswith("1 conversation, 2 messages; 1 new")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (TIME, BEGIN),
        (TIME + 0.25, BEGIN + timedelta(milliseconds=250)),
        (TIME * 1000, BEGIN),
        (TIME * 1_000_000, BEGIN),
        ("2023-11-14T22:13:20Z", BEGIN),
        ("2023-11-15T00:13:20+02:00", BEGIN),
        ("2023-11-14T22:13:20", BEGIN),
        ("0001-01-01T00:00:00Z", None),
        ("9999-12-31T23:59:59-12:00", None),
        ("9999-12-31T23:59:59Z", None),
        (1e300, None),
        (0, None),
        (-5, None),
        (True, None),
        ("yesterday", None),
        ([], None),
        (None, None),
    ],
)
def test_times_have_several_forms(given, expected):
    assert moment(given) == expected
