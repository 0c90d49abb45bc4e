"""The steps of docs/howto/removing.md leave nothing of the app in the database."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import pytest

from tests.blocks import ROOT, blocks

COMMANDS = [
    line.removeprefix("python ")
    for block in blocks("docs/howto/removing.md")
    for line in block.commands
]

WITHOUT = """
from django.urls import path
from project.settings import *

OURS = ("project", "drf_spectacular", "drf_spectacular_sidecar")
INSTALLED_APPS = [app for app in INSTALLED_APPS if not app.startswith(("chatmemory", *OURS))]
ROOT_URLCONF = "without"
urlpatterns = []
"""
"""The settings and URLs of the project, after the app was removed from its code."""


@pytest.mark.long
def test_the_commands_remove_the_app_from_the_database(tmp_path):
    (tmp_path / "without.py").write_text(WITHOUT)
    file = tmp_path / "db.sqlite3"

    def manage(command: str, settings: str) -> None:
        changed = {
            "DATABASE_URL": f"sqlite:///{file}",
            "REDIS_URL": "",
            "DJANGO_SETTINGS_MODULE": settings,
            "PYTHONPATH": str(tmp_path),
        }
        words = [sys.executable, *command.split(), "-v0", "--no-input"]
        subprocess.run(words, cwd=ROOT, env={**os.environ, **changed}, check=True)  # noqa: S603  # our own

    *drop_tables, delete_types = COMMANDS
    manage("manage.py migrate", "project.settings")
    for command in drop_tables:
        manage(command, "project.settings")
    manage(delete_types, "without")
    with sqlite3.connect(file) as database:
        dump = "\n".join(database.iterdump())
    assert "auth_permission" in dump
    assert "chatmemory" not in dump
