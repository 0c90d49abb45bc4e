"""Past erasures: what the audit and the erasure list know of a person."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from chatmemory.models import AuditEntry, Session
from chatmemory.services import erase_person, replay_erasures, user_scope
from chatmemory.services.erasure.past_erasures import find_erasures
from tests.factories import BY, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def run_erased_command(*args: str) -> str:
    out = StringIO()
    call_command("chatmemory_erased", *args, stdout=out)
    return out.getvalue()


@pytest.mark.regression
def test_the_command_prints_whether_a_person_was_erased(settings):
    ann = make_user("ann")
    scope = user_scope(ann)
    with pytest.raises(CommandError, match=f"{scope} was not erased") as refused:
        run_erased_command("--owner", "ann")
    assert refused.value.returncode == 1
    make_session("talk", owner=ann)
    kept = make_session("kept", owner=ann, held_at=timezone.now())
    erased = erase_person(by=BY, scope=scope, reason="asked for it")
    assert erased.entry is not None
    ann.delete()
    answer = run_erased_command("--scope", scope)
    assert "erased by tests: 1 conversation, 0 messages, 1 conversation on hold kept" in answer
    assert f"(receipt {erased.entry.pk}: asked for it)" in answer
    assert f"1 conversation of {scope} stored now." in answer
    assert kept.pk in erased.held


@pytest.mark.regression
def test_a_past_erasure_is_found_after_a_rotation_of_either_key(settings):
    base = settings.CHATMEMORY
    settings.CHATMEMORY = {**base, "AUDIT_KEY": "first"}
    erase_person(by=BY, scope="user:7", reason="asked for it")
    settings.SECRET_KEY = "another"
    assert "erased by tests" in run_erased_command("--scope", "user:7")
    settings.CHATMEMORY = {**base, "AUDIT_KEY": "second", "AUDIT_KEY_FALLBACKS": ["first"]}
    assert "erased by tests" in run_erased_command("--scope", "user:7")
    with pytest.raises(CommandError, match="user:8 was not erased"):
        run_erased_command("--scope", "user:8")


@pytest.mark.regression
def test_without_the_former_key_a_past_erasure_is_unknown(settings):
    base = settings.CHATMEMORY
    settings.CHATMEMORY = {**base, "AUDIT_KEY": "first"}
    erase_person(by=BY, scope="user:7", reason="asked for it")
    settings.CHATMEMORY = {**base, "AUDIT_KEY": "second"}
    with pytest.raises(CommandError, match="Unknown: 1 erasure") as refused:
        run_erased_command("--scope", "user:7")
    assert refused.value.returncode == 3


@pytest.mark.regression
def test_an_interrupted_erasure_is_not_reported_as_completed(monkeypatch):
    make_session("talk", owner=make_user("ann"))
    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", lambda _pk: 1 / 0)
    scope = Session.objects.get().scope
    with pytest.raises(ZeroDivisionError):
        erase_person(by=BY, scope=scope, reason="")
    with pytest.raises(CommandError, match="No erasure was completed"):
        run_erased_command("--scope", scope)
    assert find_erasures(by=BY, scope=scope).erasures[0].by == "tests"


@pytest.mark.regression
def test_an_erasure_that_only_the_list_records_is_found(settings, tmp_path):
    file = tmp_path / "erasures.jsonl"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ERASURE_LIST": file}
    erase_person(by=BY, scope="user:7", reason="")
    AuditEntry.objects.all().delete()  # as a restore does
    with pytest.raises(CommandError, match="No erasure was completed"):
        run_erased_command("--scope", "user:7")
    replay_erasures(by=BY)
    assert "erased by tests" in run_erased_command("--scope", "user:7")
