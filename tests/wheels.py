"""Build the sdist and the wheel of the checkout, byte for byte the same in each run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import chatmemory

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("chatmemory", "project", "tests")
"""All packages of the checkout: the wheel must leave out the others."""
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")


def release_epoch() -> int:
    """Return the date of the newest release in CHANGELOG.md, in seconds."""
    text = (ROOT / "CHANGELOG.md").read_text()
    dates = re.findall(r"^## \[[\d.]+\] - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    return int(datetime.fromisoformat(dates[0]).replace(tzinfo=UTC).timestamp())


def build(target: Path) -> tuple[Path, Path]:
    """Build the sdist, and from it the wheel; return both. The checkout stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        for name in PACKAGES:
            # What git ignores, and the wheels that are stored
            skip = shutil.ignore_patterns("__pycache__", "node_modules", "*.whl")
            shutil.copytree(Path(ROOT, name), source / name, ignore=skip)
        for name in FILES:
            shutil.copy(ROOT / name, source)
        # From the sdist: this also shows that it is complete.
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), folder]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release_epoch())}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE)  # noqa: S603  # our own
    version = chatmemory.__version__
    return (
        target / f"django_chatmemory-{version}.tar.gz",
        target / f"django_chatmemory-{version}-py3-none-any.whl",
    )
