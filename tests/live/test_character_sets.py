"""A MariaDB database that cannot store each text: no reply is lost, and a check names the cure."""

from __future__ import annotations

import re

import pytest
from django.core.management import call_command
from django.db import connection

from chatmemory import services
from chatmemory.checks.character_sets import check_character_sets
from chatmemory.live.runner import runner
from chatmemory.models import Message, Session, Turn
from tests.servers import live_process, person_with_talk, wait_for

ann = person_with_talk
live = live_process

TEXT = "Käse \N{CHEESE WEDGE} ok"

pytestmark = [pytest.mark.database, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def character_set(request, ann):
    """Give the columns of messages and turns another character set than utf8mb4."""
    if connection.vendor != "mysql":
        pytest.skip("other databases store each text")
    change = (
        "ALTER TABLE chatmemory_message MODIFY text longtext CHARACTER SET {0} NOT NULL,"
        " MODIFY body longtext CHARACTER SET {0}"
    )
    partial = "ALTER TABLE chatmemory_turn MODIFY partial longtext CHARACTER SET {0} NOT NULL"
    with connection.cursor() as cursor:
        for statement in (change, partial):
            cursor.execute(statement.format(request.param))
    yield request.param
    with connection.cursor() as cursor:
        for statement in (change, partial):
            cursor.execute(statement.format("utf8mb4"))


async def streaming(messages, session):
    yield TEXT


async def whole(messages, session):
    yield {"role": "assistant", "content": TEXT}
    yield {"role": "assistant", "content": "Later."}


async def with_a_tool(messages, session):
    yield "So far"
    call = {"id": "c", "name": "look", "args": {}}
    yield {"role": "assistant", "content": "", "tool_calls": [call]}
    yield {"role": "tool", "tool_call_id": "c", "content": TEXT}
    yield "Later."


@pytest.mark.parametrize(
    ("character_set", "kept"),
    [("utf8mb3", "Käse \ufffd ok"), ("latin1", "Käse ? ok"), ("ascii", "K?se ? ok")],
    indirect=["character_set"],
)
@pytest.mark.parametrize("name", ["streaming", "whole", "with_a_tool"])
def test_a_reply_that_cannot_be_stored_fails_with_what_can_be(
    character_set, kept, ann, live, settings, name
):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{__name__}.{name}"}
    runner.enable()
    at = {**ann.talk, "client_id": "c1", "content": "hi", "owner": runner.owner}
    runner.launch(services.admit_turn(**at).claim)
    wait_for(lambda: Turn.objects.get().ended_at, "the turn does not end")
    turn, last = Turn.objects.get(), Message.objects.order_by("seq").last()
    assert (turn.status, turn.error) == ("failed", "bad_text")
    assert (last.role, last.status, last.error) == ("assistant", "failed", "bad_text")
    assert last.text == ("" if name == "with_a_tool" else kept)
    assert Session.objects.get().running is None


@pytest.mark.parametrize("character_set", ["utf8mb3", "latin1"], indirect=True)
def test_a_check_names_the_statements_for_a_character_set(character_set):
    [found] = check_character_sets(None, databases=["default"])
    assert (found.id, found.msg[:10]) == ("chatmemory.W042", "3 columns ")
    statements = re.findall("^ALTER TABLE .*;$", found.hint, re.MULTILINE)
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    assert check_character_sets(None, databases=["default"]) == []
    call_command("makemigrations", "chatmemory", check=True, dry_run=True, verbosity=0)
