"""A project without the app, and one with an app of its own that has the same name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["core_alone", "own_statistics"])
def test_the_project_works(name, tmp_path):
    done = subprocess.run(  # noqa: S603  # our own module
        [sys.executable, "-m", f"tests.{name}.scenario"],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3",
            "REDIS_URL": "",
            "DJANGO_SETTINGS_MODULE": f"tests.{name}.settings",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
