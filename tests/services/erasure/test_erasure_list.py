"""The erasure list records an erasure outside the database before its first delete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F
from django.test import override_settings
from django.utils import timezone

from chatmemory.access.actors import importing_scope
from chatmemory.errors import MemoryUnavailable
from chatmemory.models import AuditEntry, Session
from chatmemory.services import (
    Actor,
    append_messages,
    erase_person,
    purge_session,
    replay_erasures,
    user_scope,
)
from chatmemory.services.audit.keys import key_hash
from chatmemory.services.audit.macs import utc_text
from chatmemory.services.erasure import erasure
from chatmemory.services.erasure.erasure_list import ErasureFile
from chatmemory.services.erasure.past_erasures import Replayed, find_erasures
from chatmemory.services.retention.retention import expire_sessions
from tests.blocks import block_with
from tests.factories import BY, make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.regression]


@pytest.fixture
def file(tmp_path, settings):
    """The file of ERASURE_LIST."""
    path = tmp_path / "erasures.jsonl"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ERASURE_LIST": path, "AUDIT_KEY": "first"}
    return path


@pytest.fixture
def ann():
    return make_user("ann")


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().split("\n") if line]


def talk_of(user: Any, key: str = "talk") -> Session:
    append_messages(
        session_key=key, by=Actor.user(user), messages=make_messages("a", "b"), create=True
    )
    return Session.objects.get(key=key)


class Backup:
    """A copy of all rows, which `restore` inserts again."""

    def __init__(self) -> None:
        self.models = (Session, Session._meta.get_field("messages").related_model, AuditEntry)
        self.rows = {model: list(model._base_manager.all()) for model in self.models}

    def restore(self) -> None:
        for model in reversed(self.models):
            model._base_manager.all().delete()
        for model, rows in self.rows.items():
            model._base_manager.bulk_create(rows)


def replay(**counts: Any) -> tuple[Replayed, Replayed]:
    """Replay the list; return the result and the expected result."""
    none = {"erasures": 0, "known": 0, "sessions": 0, "messages": 0, "turns": 0, "held": {}}
    expected = Replayed(**{**none, "unreadable": 0, "unknown_key": 0, **counts})
    return replay_erasures(by=BY), expected


def test_a_line_names_the_person_by_a_keyed_hash(file, ann):
    erased = erase_person(by=BY, scope=user_scope(ann), reason="asked for by ann@example.com")
    (line,) = lines(file)
    assert line.keys() == {"version", "id", "person", "key_id", "erased_at", "of"}
    assert line["of"] == "all"
    assert line["person"] == key_hash(user_scope(ann))
    assert erased.entry is not None
    assert line["id"] == erased.entry.counts["erasure"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_line_is_on_the_disk_before_the_first_delete(file, ann, monkeypatch):
    talk_of(ann)
    events = []
    fsync = os.fsync

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        events.append(("synced", Session.objects.count(), AuditEntry.objects.count()))

    monkeypatch.setattr("os.fsync", synced)
    erase_person(by=BY, scope=user_scope(ann), reason="")
    file_and_directory = [("synced", 1, 0)] * 2
    assert events == file_and_directory
    erase_person(by=BY, scope=user_scope(ann), reason="")
    assert [name for name, *_ in events] == ["synced"] * 3


def test_nothing_is_erased_if_the_list_cannot_be_written(settings, tmp_path, ann):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ERASURE_LIST": tmp_path / "gone" / "list"}
    talk_of(ann)
    with pytest.raises(MemoryUnavailable, match="nothing was erased"):
        erase_person(by=BY, scope=user_scope(ann), reason="")
    assert Session.objects.filter(removed_at=None).count() == 1
    assert not AuditEntry.objects.exists()


def test_a_person_in_a_restored_backup_is_erased_again(file, ann):
    talk_of(ann)
    talk_of(ann, "purged")
    purge_session(session_key="purged", by=Actor.user(ann), reason="")
    talk_of(make_user("bob"), "bobs")
    backup = Backup()
    erase_person(by=BY, scope=user_scope(ann), reason="asked for it")
    backup.restore()
    done, expected = replay(erasures=1, sessions=2, messages=4)
    assert done == expected
    assert Session.objects.get().key == "bobs"
    receipt = AuditEntry.objects.filter(action="erase", session_pk=None).get()
    assert receipt.actor_label == "tests"
    assert receipt.counts["erased_at"] == lines(file)[0]["erased_at"]
    done, expected = replay(known=1)
    assert done == expected


def test_a_partial_import_is_erased_again(file, ann):
    scope = importing_scope(user_scope(ann))
    make_session("half", scope=scope)
    backup = Backup()
    erase_person(by=BY, scope=user_scope(ann), reason="")
    backup.restore()
    assert replay_erasures(by=BY).sessions == 1
    assert not Session.objects.exists()


def test_a_backup_made_after_the_erasure_loses_nothing(file, ann):
    erase_person(by=BY, scope=user_scope(ann), reason="")
    talk_of(ann, "later")
    Session.objects.update(created_at=timezone.now() - timedelta(days=9))  # as an import does
    done, expected = replay(known=1)
    assert done == expected
    assert Session.objects.get().key == "later"


def test_sessions_created_after_the_restore_stay(file, ann):
    backup = Backup()
    erase_person(by=BY, scope=user_scope(ann), reason="")
    backup.restore()
    talk_of(ann, "later")
    done, expected = replay(erasures=1)
    assert done == expected
    assert Session.objects.get().key == "later"


def test_an_interrupted_erasure_is_repeated(file, ann, monkeypatch):
    talk_of(ann)
    backup = Backup()
    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", lambda _pk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        erase_person(by=BY, scope=user_scope(ann), reason="")
    monkeypatch.undo()
    backup.restore()
    talk_of(ann, "next")
    assert replay_erasures(by=BY).sessions == 1
    assert Session.objects.get().key == "next"


def test_a_continued_erasure_keeps_its_id_and_has_the_later_time(file, ann, monkeypatch):
    talk_of(ann)
    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", lambda _pk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        erase_person(by=BY, scope=user_scope(ann), reason="")
    monkeypatch.undo()
    AuditEntry.objects.filter(action="erase").delete()
    talk_of(ann, "next")
    backup = Backup()
    erase_person(by=BY, scope=user_scope(ann), reason="")
    first, second = lines(file)
    assert first["id"] == second["id"]
    backup.restore()
    replay_erasures(by=BY)
    assert not Session.objects.exists()


def test_a_session_on_hold_stays_and_is_listed(file, ann):
    kept = make_session("kept", owner=ann, held_at=timezone.now())
    backup = Backup()
    erase_person(by=BY, scope=user_scope(ann), reason="")
    backup.restore()
    assert replay_erasures(by=BY).held == {kept.pk: kept.key}
    receipt = AuditEntry.objects.get(action="erase")
    assert receipt.counts["held"] == [kept.pk]


def test_truncated_lines_are_reported(file, ann):
    talk_of(ann)
    backup = Backup()
    erase_person(by=BY, scope=user_scope(ann), reason="")
    text = file.read_text()
    file.write_text(text[:60] + text + '{"version": 1, "person"')
    backup.restore()
    done, expected = replay(erasures=1, sessions=1, messages=2, unreadable=2)
    assert done == expected


def test_a_line_has_the_fields_of_the_documented_one(file, ann):
    erase_person(by=BY, scope=user_scope(ann), reason="")
    shown = json.loads(
        block_with("docs/reasons/decisions/0008-erasure-list.md", '"of": "all"').text
    )
    [line] = lines(file)
    assert (list(line), line["version"], line["of"]) == (list(shown), shown["version"], "all")


def test_a_line_after_a_truncated_one_is_complete(file, ann):
    file.write_text('{"version": 1, "per')
    erase_person(by=BY, scope=user_scope(ann), reason="")
    assert file.read_text().count("\n{") == 1
    assert replay_erasures(by=BY).unreadable == 1


def test_a_receipt_proves_only_what_was_erased_before_its_time(file, ann, monkeypatch):
    """A second call continues the erasure of the first, which ends before the second lists it."""
    talk_of(ann, "first")
    list_erasure = erasure.list_erasure
    backups = []

    def listed(*line: Any) -> None:
        monkeypatch.setattr(erasure, "list_erasure", list_erasure)
        list_erasure(*line)
        erasure.Erasure(line[0], key_hash(line[1]), BY, "").open()
        monkeypatch.setattr(erasure, "list_erasure", listed_late)
        erase_person(by=BY, scope=user_scope(ann), reason="")

    def listed_late(*line: Any) -> None:
        monkeypatch.setattr(erasure, "list_erasure", list_erasure)
        assert line[0] == lines(file)[0]["id"]
        first = erasure.Erasure(line[0], key_hash(line[1]), BY, "")
        first.close({}, datetime.fromisoformat(lines(file)[0]["erased_at"]))
        backups.append(Backup())
        list_erasure(*line)

    monkeypatch.setattr(erasure, "list_erasure", listed)
    erase_person(by=BY, scope=user_scope(ann), reason="")
    assert not Session.objects.exists()
    backups[0].restore()
    assert Session.objects.exists()
    done, expected = replay(erasures=1, sessions=1, messages=2)
    assert done == expected
    done, expected = replay(known=1)
    assert done == expected


DAMAGE = {
    "too deep": lambda line: "[" * 100_000,
    "no time zone": lambda line: json.dumps({**line, "erased_at": "2026-01-01T00:00:00"}),
    "a date": lambda line: json.dumps({**line, "erased_at": "2026-01-01"}),
    "no day": lambda line: json.dumps({**line, "erased_at": "2026-02-30T00:00:00+00:00"}),
    "before all calendars": lambda line: json.dumps(
        {**line, "erased_at": "0001-01-01T00:00:00+14:00"}
    ),
    "NUL in the id": lambda line: json.dumps({**line, "id": f"{line['id'][1:]}\0"}),
    "half a character in the id": lambda line: json.dumps({**line, "id": "\ud800"}),
    "long id": lambda line: json.dumps({**line, "id": "a" * 100_000}),
    "NUL in the hash": lambda line: json.dumps({**line, "person": "\0"}),
    "long hash": lambda line: json.dumps({**line, "person": "a" * 1_000}),
    "endless number": lambda line: f'{{"version": {"1" * 10_000}}}',
    "no JSON": lambda line: "\0\xff",
    "of nothing": lambda line: json.dumps({k: v for k, v in line.items() if k != "of"}),
    "of an unknown form": lambda line: json.dumps({**line, "of": "some"}),
    "of what is no session": lambda line: json.dumps({**line, "of": [[1, "2026"], [1]]}),
    "another version": lambda line: json.dumps({**line, "version": 2}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_line_does_not_prevent_the_replay_of_others(file, ann, damage):
    talk_of(ann)
    backup = Backup()
    erase_person(by=BY, scope=user_scope(ann), reason="")
    (line,) = lines(file)
    with file.open("a", encoding="utf-8") as opened:
        opened.write(DAMAGE[damage]({**line, "id": "0" * 32}) + "\n")
    backup.restore()
    done, expected = replay(erasures=1, sessions=1, messages=2, unreadable=1)
    assert done == expected
    assert len(find_erasures(by=BY, scope=user_scope(ann)).erasures) == 1
    done, expected = replay(known=1, unreadable=1)
    assert done == expected


def test_after_a_rotation_persons_are_found_while_the_former_key_is_known(file, ann, settings):
    talk_of(ann)
    backup = Backup()
    erase_person(by=BY, scope=user_scope(ann), reason="")
    backup.restore()
    base = settings.CHATMEMORY
    settings.CHATMEMORY = {**base, "AUDIT_KEY": "second"}
    done, expected = replay(unknown_key=1)
    assert done == expected
    assert not AuditEntry.objects.exists()
    settings.CHATMEMORY = {**base, "AUDIT_KEY": "second", "AUDIT_KEY_FALLBACKS": ["first"]}
    done, expected = replay(erasures=1, sessions=1, messages=2)
    assert done == expected


def test_without_a_list_nothing_is_replayed(ann):
    talk_of(ann)
    done, expected = replay()
    assert done == expected


def test_a_deleted_users_erasure_is_listed(file, ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": "erase"}
    talk_of(ann)
    scope = user_scope(ann)
    Session.objects.update(owner=None)
    backup = Backup()
    expire_sessions()
    assert [line["person"] for line in lines(file)] == [key_hash(scope)]
    assert AuditEntry.objects.filter(action="erase", session_pk=None).count() == 1
    backup.restore()
    assert replay_erasures(by=BY).sessions == 1


@pytest.fixture
def forgotten(file, ann, settings):
    """The scope of a deleted user with a session to erase, and one that stays until it expires."""
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": "erase"}
    talk_of(ann)
    talk_of(ann, "ends")
    Session.objects.filter(key="ends").update(expires_at=timezone.now() + timedelta(days=9))
    Session.objects.update(owner=None)
    return user_scope(ann)


def named(*sessions: Session) -> list[list[object]]:
    return [[session.pk, utc_text(session.created_at)] for session in sessions]


def test_a_replay_erases_only_the_sessions_in_the_line(file, ann, forgotten):
    talk = Session.objects.get(key="talk")
    Session.objects.update(owner=ann)  # the backup was made before the account was deleted
    backup = Backup()
    Session.objects.update(owner=None)
    expire_sessions()
    assert Session.objects.get().key == "ends"
    assert lines(file)[0]["of"] == named(talk)
    backup.restore()
    done, expected = replay(erasures=1, sessions=1, messages=2)
    assert done == expected
    assert Session.objects.get().key == "ends"
    done, expected = replay(known=1)
    assert done == expected


def test_another_session_with_the_same_primary_key_stays(file, forgotten):
    backup = Backup()
    expire_sessions()
    backup.restore()
    talk = Session.objects.filter(key="talk")
    talk.update(created_at=F("created_at") - timedelta(microseconds=1000))
    done, expected = replay(erasures=1)
    assert done == expected
    assert talk.exists()


def test_a_session_on_hold_is_not_in_the_line(file, forgotten):
    Session.objects.filter(key="talk").update(held_at=timezone.now())
    other = make_session("other", scope=forgotten)
    expire_sessions()
    assert lines(file)[0]["of"] == named(other)
    assert set(Session.objects.values_list("key", flat=True)) == {"talk", "ends"}


@pytest.mark.slow
def test_retention_completes_an_erasure_up_to_the_time_of_its_start(
    file, ann, forgotten, monkeypatch
):
    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", lambda _pk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        erase_person(by=BY, scope=forgotten, reason="")
    monkeypatch.undo()
    talk_of(ann, "later")
    talk_of(ann, "later ends")
    Session.objects.filter(key="later ends").update(expires_at=timezone.now() + timedelta(days=9))
    Session.objects.filter(key__startswith="later").update(owner=None)
    backup = Backup()
    later = Session.objects.get(key="later")
    expire_sessions()
    first, completed, second = lines(file)
    assert (first["id"], first["of"]) == (completed["id"], completed["of"])
    assert completed["of"] == "all"
    assert second["of"] == named(later)
    assert second["id"] != first["id"]
    assert Session.objects.get().key == "later ends"
    receipts = AuditEntry.objects.filter(action="erase", session_pk=None).order_by("pk")
    assert [receipt.counts["sessions"] for receipt in receipts] == [2, 1]
    backup.restore()
    assert replay_erasures(by=BY).erasures == 2
    assert Session.objects.get().key == "later ends"


def test_an_erasure_of_all_sessions_completes_one_of_some(file, forgotten, monkeypatch):
    backup = Backup()
    monkeypatch.setattr("chatmemory.services.erasure.erasure.vacuum_session", lambda _pk: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        expire_sessions()
    monkeypatch.undo()
    erased = erase_person(by=BY, scope=forgotten, reason="")
    assert (erased.sessions, erased.messages) == (2, 4)
    some, every = lines(file)
    assert (some["id"], every["of"]) == (every["id"], "all")
    backup.restore()
    done, expected = replay(erasures=1, sessions=2, messages=4)
    assert done == expected


@pytest.mark.long
def test_many_processes_append_complete_lines(tmp_path):
    file = tmp_path / "list"
    code = (
        "import sys; from pathlib import Path\n"
        "from chatmemory.services.erasure.erasure_list import ErasureFile\n"
        "for n in range(100): ErasureFile(Path(sys.argv[1])).append(sys.argv[2] * 500)"
    )
    setup = "import django; django.setup()\n"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"}
    writers = [
        subprocess.Popen(  # noqa: S603  # our own code
            [sys.executable, "-c", setup + code, str(file), f"{n}"], env=environment
        )
        for n in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    found = sorted(ErasureFile(file).lines())
    assert found == sorted(f"{n}" * 500 for n in range(4) for _ in range(100))


class Shelf:
    """A list of the host."""

    kept: list[str] = []  # noqa: RUF012

    def append(self, line: str) -> None:
        self.kept.append(line)

    def lines(self) -> Iterable[str]:
        return self.kept


def test_the_list_can_be_an_object_of_the_host(ann):
    talk_of(ann)
    backup = Backup()
    with override_settings(CHATMEMORY={"ERASURE_LIST": f"{__name__}.Shelf", "DB_THREADS": 0}):
        erase_person(by=BY, scope=user_scope(ann), reason="")
        backup.restore()
        assert replay_erasures(by=BY).sessions == 1
