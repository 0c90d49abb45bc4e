"""A file that is imported again: what is new is appended, or becomes a second session; no mix."""

from __future__ import annotations

import copy
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from chatmemory import services
from chatmemory.errors import Busy
from chatmemory.imports import storing
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.services import Actor, user_scope
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from tests.factories import make_user
from tests.imports.samples import (
    RAIN,
    SUN,
    claude,
    claude_message,
    gpt,
    gpt_message,
    webui,
    webui_message,
)

pytestmark = pytest.mark.database

BY = Actor.server("test")
KEY = "chatgpt:g1"
THANKS = gpt_message("user", "Thanks.", at=60)
SHORT = [gpt(SUN, RAIN)]
LONG = [gpt(SUN, RAIN, THANKS)]


def texts(owner: Any, key: str = KEY) -> list[str]:
    return [row.text for row in services.read_history(**at(owner, key)).rows]


def at(owner: Any, key: str = KEY) -> dict[str, Any]:
    return {"session_key": key, "by": BY, "scope": user_scope(owner)}


def extended(report: dict[str, Any]) -> int:
    """Return how many sessions got new messages."""
    number: int = report["more"].get("with new messages", 0)
    return number


def second(report: dict[str, Any]) -> int:
    """Return how many sessions are second ones."""
    number: int = report["more"].get("beside a session that differs", 0)
    return number


def test_what_is_new_at_the_end_is_appended(run, owner):
    run(SHORT)
    report = run(LONG)
    assert (report["new"], report["existing"], extended(report)) == (0, 1, 1)
    assert texts(owner) == ["Sun?", "Rain.", "Thanks."]
    session = Session.objects.get()
    assert session.last_message_at == Message.objects.get(text="Thanks.").created_at
    assert session.tokens == sum(Message.objects.values_list("tokens", flat=True))
    counts = [entry.counts["messages"] for entry in AuditEntry.objects.filter(action="import")]
    assert sorted(counts) == [1, 2]
    assert extended(run(LONG)) == 0
    assert not list(check_integrity())


def test_an_older_export_changes_nothing(run, owner):
    run(LONG)
    report = run(SHORT)
    assert (report["new"], report["existing"], extended(report)) == (0, 1, 0)
    assert texts(owner) == ["Sun?", "Rain.", "Thanks."]


def test_a_newer_export_of_a_continued_conversation_becomes_a_second_one(run, owner):
    run(SHORT)
    mine = [{"role": "user", "content": "Mine."}]
    services.append_messages(messages=mine, **at(owner))
    assert run(SHORT)["existing"] == 1
    report = run(LONG)
    assert (report["new"], second(report)) == (1, 1)
    assert texts(owner) == ["Sun?", "Rain.", "Mine."]
    assert texts(owner, f"{KEY}:2") == ["Sun?", "Rain.", "Thanks."]
    assert run(LONG)["existing"] == 1
    longer = [gpt(SUN, RAIN, THANKS, gpt_message("assistant", "Bye."))]
    assert extended(run(longer)) == 1
    assert texts(owner, f"{KEY}:2")[-1] == "Bye."
    assert Session.objects.count() == 2


def test_a_waiting_message_continues_the_conversation(run, owner):
    run(SHORT)
    services.admit_turn(content="And now?", client_id="t1", **at(owner))
    assert second(run(LONG)) == 1


@pytest.mark.parametrize("product", ["chatgpt", "claude", "open-webui"])
def test_a_changed_branch_becomes_a_second_session(product, run, owner):
    match product:
        case "chatgpt":
            files = SHORT, [gpt(SUN, RAIN)]
            mapping = files[1][0]["mapping"]
            mapping["x"] = {"parent": "n0", "message": gpt_message("assistant", "Snow.")}
            files[1][0]["current_node"] = "x"
        case "claude":
            first = claude_message(0, "human", "Sun?")
            rain = claude_message(1, "assistant", "Rain.")
            snow = claude_message(2, "assistant", "Snow.", parent_message_uuid="u0")
            files = [claude(first, rain)], [claude(first, rain, snow)]
        case _:  # an edited reply keeps its id
            files = tuple(
                [webui(webui_message(0, "user", "Sun?"), webui_message(1, "assistant", text))]
                for text in ("Rain.", "Snow.")
            )
    run(files[0])
    report = run(files[1])
    assert (report["new"], second(report)) == (1, 1)
    by_key = {session.key: texts(owner, session.key) for session in Session.objects.all()}
    assert sorted(by_key.values()) == [["Sun?", "Rain."], ["Sun?", "Snow."]]
    for file in files:
        assert run(file)["existing"] == 1


def test_two_conversations_with_one_id_are_not_mixed(run, owner):
    other = gpt(gpt_message("user", "Other."))
    report = run([*SHORT, other, *LONG])
    assert (report["new"], second(report), extended(report)) == (2, 1, 1)
    assert texts(owner) == ["Sun?", "Rain.", "Thanks."]
    assert texts(owner, f"{KEY}:2") == ["Other."]
    assert run([*SHORT, other, *LONG])["existing"] == 3


def test_a_purged_conversation_stays_purged_until_it_is_restored(run, owner):
    run(SHORT)
    purged = services.purge_session(reason="asked", **at(owner))
    for file in (SHORT, LONG, [gpt(gpt_message("user", "Other."))]):
        report = run(file)
        assert (report["new"], report["skipped"], report["messages"]) == (0, 1, 0)
    services.restore_session(entry_pk=purged.pk, by=BY, scope=user_scope(owner), reason="asked")
    assert extended(run(LONG)) == 1
    assert texts(owner) == ["Sun?", "Rain.", "Thanks."]


def test_a_redacted_message_does_not_return(run, owner):
    run(SHORT)
    services.redact_message(seq=1, reason="asked", **at(owner))
    assert run(SHORT)["existing"] == 1
    assert extended(run(LONG)) == 1
    assert texts(owner) == ["", "Rain.", "Thanks."]


def test_cleared_messages_do_not_return(run, owner, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}
    run(SHORT)
    services.clear_session(reason="asked", **at(owner))
    assert run(SHORT)["existing"] == 1
    vacuum()
    assert not Message.stored.exists()
    assert run(SHORT)["existing"] == 1
    assert extended(run(LONG)) == 1
    assert texts(owner) == ["Thanks."]


def test_an_archived_conversation_gets_nothing(run, owner, capsys):
    run(SHORT)
    services.archive_session(**at(owner), reason="")
    assert run(SHORT)["existing"] == 1
    with pytest.raises(CommandError, match="1 invalid conversation"):
        run(LONG)
    assert capsys.readouterr().err.strip().endswith("accepts no new messages. (archived)")
    assert Message.objects.count() == 2


def test_another_person_gets_a_session_of_their_own(run, owner):
    other = make_user("zoe")
    run(SHORT)
    assert run(SHORT, owner="zoe")["new"] == 1
    assert texts(owner) == texts(other) == ["Sun?", "Rain."]


def test_an_erased_person_leaves_no_trace_of_an_import(run, owner):
    run(SHORT)
    call_command("chatmemory_erase", owner="mira", by="olga", reason="asked", stdout=StringIO())
    assert not Session.objects.filter(origin__isnull=False).exists()
    assert run(SHORT)["new"] == 1


def test_a_key_of_another_session_is_not_used(run, owner):
    mine = [{"role": "user", "content": "Mine."}]
    services.append_messages(messages=mine, create=True, **at(owner))
    assert second(run(SHORT)) == 0
    assert texts(owner) == ["Mine."]
    assert texts(owner, f"{KEY}:2") == ["Sun?", "Rain."]


def test_an_import_that_another_one_overtakes_stores_nothing(run, owner, monkeypatch):
    run(SHORT)
    monkeypatch.setattr(storing.Storing, "_read_origins", lambda self: {})
    with pytest.raises(CommandError, match=r"in progress\. Run this again to continue"):
        run(SHORT)
    assert Session.objects.count() == 1


def test_a_failure_while_a_conversation_is_stored_leaves_nothing_of_it(run, owner, monkeypatch):
    def fail(*args: object, **more: object) -> None:
        raise Busy

    monkeypatch.setattr(storing, "record", fail)
    with pytest.raises(CommandError, match="Run this again to continue"):
        run(SHORT)
    assert not Session.objects.exists()
    assert not Message.stored.exists()


def test_a_long_conversation_is_one_session(run, owner, monkeypatch):
    """Of several pages of stored rows, and several chunks of new ones."""
    monkeypatch.setattr(storing, "PAGE", 50)
    monkeypatch.setattr(storing, "MAX_CHUNK_ROWS", 100)
    messages = [gpt_message(("user", "assistant")[n % 2], f"m{n}") for n in range(250)]
    assert run([gpt(*messages[:120])])["messages"] == 120
    assert extended(run([gpt(*messages)])) == 1
    assert texts(owner) == [f"m{n}" for n in range(250)]


def test_the_number_of_statements_does_not_depend_on_the_number_of_messages(
    run, owner, django_assert_max_num_queries
):
    many = copy.deepcopy([gpt(*[SUN, RAIN] * 100)])
    with django_assert_max_num_queries(30, connection=connection):
        run(many)
