"""The database of each release is upgraded by the current code, which continues its sessions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from asgiref.sync import sync_to_async as db
from django.contrib.auth.models import User
from django.core.checks import ERROR, run_checks
from django.core.management import call_command
from django.db import connection

from chatmemory import services
from chatmemory.models import AuditAction, AuditEntry, Job, Session, Turn
from chatmemory.services import Actor
from chatmemory.services.audit.seals import verify_audit
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.jobs.run import run_next
from chatmemory.services.turns.recovery import recover_all_overdue_turns
from tests.servers import Tab, eventually, live_process, sign_in, use_responder
from tests.upgrades.contents import AUDIT_KEY, contents
from tests.upgrades.databases import FILES, loaded

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RELEASES = sorted(file.parent for file in HERE.glob("*/facts.json"))

MAX_BYTES = 100_000
"""Of the compressed database of a vendor."""

CHANGED: set[str] = set()
"""What later migrations drop, rename or fill anew, as `table.column`."""

live = live_process
each_release = pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def facts(
    request: pytest.FixtureRequest, transactional_db: None, tmp_path: Path, settings: Any
) -> Iterator[dict[str, Any]]:
    """Load the database of a release and migrate it; return what it contained."""
    settings.CHATMEMORY = {**settings.CHATMEMORY, "AUDIT_KEY": AUDIT_KEY, "UNDO_DAYS": 36_500}
    is_file = connection.vendor == "sqlite"
    name = str(tmp_path / "db.sqlite3") if is_file else f"test_chatmemory_upgrade_{os.getpid()}"
    with loaded(request.param, name):
        call_command("migrate", verbosity=0)
        of_vendor: dict[str, Any] = json.loads((request.param / "facts.json").read_text())
        yield of_vendor[connection.vendor]


def at(key: str) -> dict[str, Any]:
    return {"session_key": key, "by": Actor.user(User.objects.get(username="ann"))}


def texts(key: str) -> list[str]:
    return [row.text for row in services.read_history(**at(key)).rows]


def last_entry(action: str, key: str) -> AuditEntry:
    pk = Session.objects.get(key=key).pk
    return AuditEntry.objects.filter(action=action, session_pk=pk).latest("pk")


@pytest.mark.database
@pytest.mark.slow
def test_an_upgrade_keeps_each_value_of_each_row(facts):
    now = contents()
    changed = {
        f"{table}.{column}"
        for table, before in facts["contents"].items()
        for column, digest in before["columns"].items()
        if now.get(table, {"columns": {}})["columns"].get(column) != digest
    }
    assert changed == CHANGED
    assert {name: now[name]["rows"] for name in facts["contents"]} == {
        name: table["rows"] for name, table in facts["contents"].items()
    }


@pytest.mark.database
@pytest.mark.slow
def test_upgraded_sessions_have_the_same_history(facts):
    read = {}
    for place in facts["histories"]:
        scope, _, key = place.partition(" ")
        page = services.read_history(session_key=key, scope=scope, by=Actor.server("test"))
        read[place] = [row.text for row in page.rows]
    assert read == facts["histories"]
    assert len(read) > 15


@pytest.mark.database
@pytest.mark.slow
def test_an_upgraded_database_passes_all_checks(facts):
    assert recover_all_overdue_turns().interrupted == 1  # its process died before the upgrade
    found = [m for m in run_checks(databases=["default"]) if m.level >= ERROR or "W031" in m.id]
    assert found == []
    assert [*check_integrity()] == []
    assert [*verify_audit(head=facts["head"])] == []
    call_command("chatmemory_check", verbosity=0)
    call_command("chatmemory_audit_verify", head=facts["head"], seal_old=True, verbosity=0)


@pytest.mark.database
@pytest.mark.slow
async def test_upgraded_sessions_are_continued(facts, settings, live):
    use_responder(settings, "echo")
    ann = await db(sign_in)(await User.objects.aget(username="ann"))
    before = facts["histories"][f"user:{ann.user.pk} talk"]
    async with Tab(ann) as chat:
        await chat.hello()
        await chat.send("Are you still there?")
        await chat.idle(len(before) + 2)
    after = await db(texts)("talk")
    assert after[:-1] == [*before, "Are you still there?"]
    # The process of this session died: the waiting batch is stored, the waiting turns are answered.
    await db(recover_all_overdue_turns)()
    async with Tab(ann, "running") as chat:
        await chat.hello()
        active = Turn.objects.filter(status__in=Turn.ACTIVE_STATUSES)
        await eventually(lambda: not active.exists())
    rows = await db(texts)("running")
    assert [text.strip() for text in rows] == [
        "running r1?",
        "running r1, the first half",
        "Your order was shipped.",
        *("running r2?", "running r2?"),  # the responder repeats it
        *("running r4?", "running r4?"),
    ]


@pytest.mark.database
@pytest.mark.slow
def test_upgraded_sessions_are_trimmed_and_restored(facts):
    services.trim_session(**at("talk"), keep_last=2, reason="a test")
    assert texts("talk") == facts["histories"]["user:1 talk"][2:]  # no turn is cut
    by = at("talk")["by"]
    for key, action in (
        ("talk", AuditAction.TRIM),
        ("trimmed", AuditAction.TRIM),
        ("cleared", AuditAction.CLEAR),
        ("purged", AuditAction.PURGE),
    ):
        services.restore_session(entry_pk=last_entry(action, key).pk, by=by, reason="undo")
    assert texts("talk") == facts["histories"]["user:1 talk"]
    for key in ("trimmed", "cleared", "purged"):
        assert texts(key) == [f"{key} {n}" for n in range(6)]
    assert run_next(owner="test")
    assert {*Job.objects.values_list("status", flat=True)} == {"complete"}
    assert Session.objects.get(key="job").archived_at
    assert [*verify_audit(head=facts["head"])] == []


@each_release
def test_the_migrations_of_a_release_are_unchanged(folder):
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as released:
        names = [n for n in released.namelist() if re.search(r"/migrations/\d\w+\.py$", n)]
        changed = [n for n in names if released.read(n) != read_or_nothing(ROOT / n)]
    assert len(names) >= 2
    assert changed == [], "Restore these files, and add the next migration."


def read_or_nothing(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


@each_release
def test_the_database_of_a_release_is_small(folder):
    sizes = {name: (folder / name).stat().st_size for name in FILES.values()}
    assert max(sizes.values()) <= MAX_BYTES, sizes


def test_each_release_of_the_changelog_is_stored():
    text = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[([\d.]+)\]", text, re.MULTILINE)
    assert sorted(released) == sorted(folder.name for folder in RELEASES)
    assert released
