"""Verifies units of systemd in the documentation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def analyze(*args: str, path: Path) -> None:
    """Run systemd-analyze, if it is installed; assert that it reports nothing about our units."""
    if not shutil.which("systemd-analyze"):
        return
    done = subprocess.run(  # noqa: S603  # our own page
        ["systemd-analyze", *args],  # noqa: S607
        capture_output=True,
        text=True,
        env={"SYSTEMD_UNIT_PATH": f"{path}:"},
        check=False,
    )
    names = [file.name.partition("@")[0] for file in path.iterdir()]
    assert not [name for name in names if name in done.stderr], done.stderr
    if args[0] == "calendar":
        assert done.returncode == 0, done.stderr
