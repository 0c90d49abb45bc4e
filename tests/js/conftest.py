"""Node.js for the tests of JavaScript."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.conftest import missing


@pytest.fixture
def node() -> str:
    """The path of Node.js; the test is skipped if it is missing or too old."""
    path = shutil.which("node")
    if path is None:
        missing("Node.js is not installed")
    version = subprocess.check_output([path, "--version"], text=True).strip()  # noqa: S603  # no input
    if tuple(map(int, version.removeprefix("v").split(".")[:2])) < (20, 19):
        missing(f"Node.js {version} is older than 20.19")
    return path
