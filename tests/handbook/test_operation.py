"""The chapters about backup and restore, and an upgrade."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tomllib

import pytest
from django.db import connection

from chatmemory import services
from chatmemory.models import Session
from tests.admin.visits import talk_of
from tests.conftest import database_environment, missing
from tests.factories import BY, make_user
from tests.handbook.reading import FOLDER
from tests.management.commanding import run


@pytest.fixture
def tools(postgresql):
    """Skip the test without the tools of PostgreSQL."""
    if not (shutil.which("pg_dump") and shutil.which("pg_restore")):
        missing("pg_dump and pg_restore are not installed")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_backup_and_restore(tools, chapter, tmp_path, settings):
    disk, backups = tmp_path / "disk", tmp_path / "backups"
    disk.mkdir()
    backups.mkdir()
    (disk / "head").touch()
    erasures, old = backups / "erasures.jsonl", backups / "2020-01-01.dump"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ERASURE_LIST": str(erasures)}
    for file in (erasures, old):
        file.touch()
        os.utime(file, (0, 0))
    url = database_environment()["DATABASE_URL"]
    folders = {"disk": str(disk), "backups": str(backups), "database": f"--dbname={url}"}

    def execute(command):
        day = next((file.stem for file in backups.glob("*.head")), "")
        return subprocess.run(  # noqa: S602  # our own page
            chapter.line(command, day=day, **folders),
            shell=True,
            check=True,
            env={**os.environ, "PGOPTIONS": "-c lock_timeout=9s"},
            capture_output=True,
            text=True,
        ).stdout

    ann, bob = make_user("ann"), make_user("bob")
    talk_of(ann)
    kept = talk_of(bob, key="kept")
    services.hold_session(session_key="kept", scope=kept.scope, by=BY, reason="case 9")
    verify = ("chatmemory_audit_verify", "--head-file", str(disk / "head"))
    assert run(*verify)[0] == 0
    execute("cp")
    execute("pg_dump")
    execute("find")
    assert {file.suffix for file in backups.iterdir()} == {".head", ".dump", ".jsonl"}
    assert not old.exists()
    services.erase_person(by=BY, scope=services.user_scope(ann), reason="request 12")
    assert run(*verify)[0] == 0

    connection.close()
    execute("pg_restore")
    assert Session.objects.filter(owner=ann).exists()
    assert run(*verify)[0] == 1
    execute("cp")
    assert execute("grep") == "1\n"
    status, output = chapter.run("chatmemory_restored")
    assert (status, "1 erasure repeated" in output) == (0, True)
    assert not Session.objects.filter(owner=ann).exists()
    assert chapter.run("chatmemory_check")[0] == 0
    assert chapter.run("chatmemory_audit_verify", **folders)[0] == 0
    status, output = chapter.run("chatmemory_erased")
    assert (status, "0 conversations of" in output) == (0, True)
    kept.refresh_from_db()


@pytest.mark.slow
@pytest.mark.django_db
def test_an_upgrade(chapter, sign_in, settings, tmp_path):
    settings.STATIC_ROOT = tmp_path
    settings.SILENCED_SYSTEM_CHECKS = ["chatmemory.E012"]  # DB_THREADS is 0 in tests
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]
    assert shlex.split(chapter.line("pip"))[-1] == project["name"]
    for command in ("check", "migrate", "collectstatic", "chatmemory_roles"):
        assert chapter.run(command)[0] == 0, command
    assert (tmp_path / "chatmemory/admin/admin.css").exists()
    page = sign_in("Chat lead")
    page.click("Conversations")
    page.follow("Health")
    page = sign_in("Chat auditor")
    page.click("Audit entries")
    page.click("Health")
    page.see("The app works.")
