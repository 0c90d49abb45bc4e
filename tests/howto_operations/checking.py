"""Runs Django's checks with settings of a page, in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.blocks import ROOT

START = "from project.settings import *\nfrom project.settings import INSTALLED_APPS\n"


def check(folder: Path, text: str, *args: str, **env: str) -> str:
    """Check the project of the demo with these settings; return what the checks report."""
    (folder / "settings_of_page.py").write_text(START + text)
    done = subprocess.run(  # noqa: S603  # our own page
        [sys.executable, "manage.py", "check", "--fail-level", "INFO", *args],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "settings_of_page",
            "PYTHONPATH": str(folder),
            **env,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or "chatmemory" in done.stderr or "security" in done.stderr, done
    return done.stderr.strip() if done.returncode else ""
