"""Node.js, the packages that npm installs, and the drivers that run pages in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "docs/examples"
DEADLINE = 60
"""Seconds after which a call of a driver fails."""


def node_or_skip(folder: Path) -> str:
    """Return the path of Node.js; skip the test without it or without the packages of a folder.

    They are no services: CHATMEMORY_REQUIRE_SERVICES does not require them.
    """
    path = shutil.which("node")
    if path is None:
        pytest.skip("Node.js is not installed")
    version = subprocess.check_output([path, "--version"], text=True).strip()  # noqa: S603  # no input
    if tuple(map(int, version.removeprefix("v").split(".")[:2])) < (20, 19):
        pytest.skip(f"Node.js {version} is older than 20.19")
    if not (folder / "node_modules").exists():
        pytest.skip(f"`npm ci` was not run in {folder.relative_to(HERE.parent.parent)}")
    return path


class Driver:
    """A process of Node.js that runs pages; calls can run at the same time."""

    def __init__(self, node: str, script: str, *, flags: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # our own command line
            [node, *flags, script],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._numbers = count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, name: str, **fields: object) -> Future[Any]:
        """Start a call; its result is JSON."""
        assert self._process.stdin is not None
        number = next(self._numbers)
        found = self._waiting[number] = Future()
        self._process.stdin.write(json.dumps({"number": number, "name": name, **fields}) + "\n")
        self._process.stdin.flush()
        return found

    def call(self, name: str, **fields: object) -> Any:
        return self.start(name, **fields).result(DEADLINE)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["number"])
            if "failure" in answer:
                waiting.set_exception(RuntimeError(answer["failure"]))
            else:
                waiting.set_result(answer["result"])
        for waiting in self._waiting.values():
            waiting.set_exception(RuntimeError("the driver has ended"))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._reader.join()
