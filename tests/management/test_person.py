"""`chatmemory_person`: what is stored of a person, and who was erased. `export --dry-run` too."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

import pytest
from django.core.management import call_command
from django.utils import timezone

from chatmemory import services
from chatmemory.models import AuditEntry, Session
from chatmemory.services import SERVER
from tests.factories import BY, make_messages, make_session, make_user
from tests.management.commanding import WHO, run, run_json

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
VISITOR = f"visitor:{'ab' * 32}"


@pytest.fixture
def ann():
    return make_user("ann")


def talk_of(key, owner, *, messages=2, **columns):
    session = make_session(key, owner=owner, **columns)
    texts = make_messages(*(f"secret {n}" for n in range(messages)))
    at = {"session_key": key, "scope": session.scope, "by": BY}
    services.append_messages(**at, messages=texts)
    return session


@pytest.mark.database
@pytest.mark.django_db
def test_all_sessions_of_a_person_are_listed_with_their_state_and_numbers(ann):
    talk_of("open", ann, title="secret")
    talk_of("archived", ann, archived_at=None, messages=4)
    at = {"scope": f"user:{ann.pk}", "by": BY, "reason": ""}
    services.trim_session(session_key="archived", keep_last=2, **at)
    services.archive_session(session_key="archived", **at)
    talk_of("held", ann)
    services.hold_session(session_key="held", **at)
    talk_of("purged", ann)
    services.purge_session(session_key="purged", **at)
    talk_of("expired", ann)
    Session.objects.filter(key="expired").update(expires_at=LONG_AGO)
    make_session("importing", scope=f"importing:user:{ann.pk}")
    make_session("other")
    status, lines = run_json("chatmemory_person", owner="ann")
    assert status == 0
    listed = [(line["key"], line["state"], line["messages"]) for line in lines[:-1]]
    assert listed == [
        ("open", "open", 2),
        ("archived", "archived", 2),
        ("held", "open", 2),
        ("purged", "purged", 0),
        ("expired", "expired", 2),
        ("importing", "importing", 0),
    ]
    assert [line["key"] for line in lines[:-1] if line["held_at"]] == ["held"]
    total = lines[-1]
    assert (total["sessions"], total["held"], total["purged"], total["archived"]) == (6, 1, 1, 1)
    assert (total["messages"], total["hidden_messages"], total["erasures"]) == (8, 4, 0)
    assert "secret" not in str(lines)
    assert run_json("chatmemory_person", scope=f"user:{ann.pk}") == (status, lines)
    assert run_json("chatmemory_person", owner="ann", summary=True) == (0, lines[-1:])
    _, text = run("chatmemory_person", owner="ann")
    assert "(held): open, on hold, 2 messages, 0 hidden\n" in text
    assert text.endswith(
        "6 conversations, 1 on hold, 1 archived, 1 purged, 8 messages, 4 hidden, 0 turns, "
        "0 erasures\n"
    )


@pytest.mark.django_db
def test_a_visitor_and_the_server_are_named_by_their_scope():
    make_session("one", scope=VISITOR)
    make_session("two")
    for scope, key in ((VISITOR, "one"), (SERVER, "two")):
        assert run_json("chatmemory_person", scope=scope)[1][0]["key"] == key


@pytest.mark.django_db
def test_the_receipts_of_a_person_are_listed(ann):
    talk_of("a", ann)
    run("chatmemory_erase", owner="ann", **WHO)
    receipt = AuditEntry.objects.get(action="erase", session_pk=None)
    status, (erasure, total) = run_json("chatmemory_person", owner="ann")
    assert (status, erasure["entry_pk"], erasure["messages"]) == (0, receipt.pk, 2)
    assert (total["sessions"], total["erasures"]) == (0, 1)
    assert f"(receipt {receipt.pk}: request of 4 May)" in run("chatmemory_person", owner="ann")[1]


@pytest.mark.django_db
def test_a_person_of_whom_nothing_is_known_has_another_status(ann, settings):
    talk_of("a", make_user("bob"))
    assert run("chatmemory_person", owner="ann")[0] == 1
    assert run("chatmemory_person", owner="nobody")[0] == 1
    run("chatmemory_erase", owner="bob", **WHO)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "AUDIT_KEY": "another"}
    assert run("chatmemory_person", owner="ann")[0] == 3


@pytest.mark.django_db
def test_the_erasure_of_a_session_is_found_by_its_key(ann, settings):
    talk_of("order-4711", ann)
    status, (total,) = run_json("chatmemory_person", erased="order-4711")
    assert (status, total) == (1, {"erasures": 0, "unknown_key": 0, "is_erased": False})
    run("chatmemory_erase", owner="ann", **WHO)
    receipt = AuditEntry.objects.get(action="erase", session_pk=None)
    status, (erasure, total) = run_json("chatmemory_person", erased="order-4711")
    assert (status, erasure["entry_pk"], total["is_erased"]) == (0, receipt.pk, True)
    assert run("chatmemory_person", erased="order-4712")[0] == 1
    settings.CHATMEMORY = {**settings.CHATMEMORY, "AUDIT_KEY": "another"}
    status, (total,) = run_json("chatmemory_person", erased="order-4711")
    assert (status, total["unknown_key"]) == (3, 1)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments",
    [
        {"scope": ""},
        {"scope": "nonsense"},
        {"scope": "visitor:short"},
        {"scope": "importing:user:1"},
        {"owner": "a\0"},
        {"erased": "a\0"},
        {"erased": "a", "summary": True},
    ],
)
def test_wrong_options_have_their_own_status(arguments):
    assert run("chatmemory_person", **arguments) == (2, "")


@pytest.mark.django_db
def test_the_progress_and_the_batches(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.management.commands.chatmemory_person.BATCH_SESSIONS", 2)
    for number in range(5):
        make_session(f"s{number}", owner=ann)
    out, err = StringIO(), StringIO()
    call_command("chatmemory_person", owner="ann", progress=True, stdout=out, stderr=err)
    assert err.getvalue().splitlines() == ["  0%  0 of 5", "100%  5 of 5"]
    assert [f"(s{n})" in out.getvalue() for n in range(5)] == [True] * 5


@pytest.mark.django_db
def test_a_dry_run_of_an_export_writes_nothing(ann, tmp_path):
    talk_of("a", ann, held_at=timezone.now())
    talk_of("b", ann)
    talk_of("c", None)
    file = tmp_path / "out.jsonl"
    for named, sessions in (
        ({"all": True}, 3),
        ({"owner": "ann"}, 2),
        ({"owner": "ann", "key": "b"}, 1),
    ):
        given = {**named, "output": str(file), "dry_run": True, **WHO}
        status, (line,) = run_json("chatmemory_export", **given)
        assert (status, line["sessions"], line["messages"]) == (0, sessions, 2 * sessions)
        assert line["dry_run"]
    assert run_json("chatmemory_export", owner="ann", dry_run=True, **WHO)[0] == 0
    assert run("chatmemory_export", owner="ann", key="no", dry_run=True, **WHO) == (1, "")
    assert (file.exists(), AuditEntry.objects.count()) == (False, 0)


@pytest.mark.django_db
def test_a_person_of_whom_other_apps_have_rows_is_shown_and_erased(ann, shop):
    shop.Fact.objects.create(scope=f"user:{ann.pk}", text="secret")
    status, (line,) = run_json("chatmemory_person", owner="ann")
    assert (status, line["sessions"], line["derived"]) == (0, 0, 1)
    assert "1 row of other apps" in run("chatmemory_person", owner="ann")[1]
    assert "1 row of other apps" in run("chatmemory_erase", owner="ann", **WHO)[1]
    assert not shop.Fact.objects.exists()
