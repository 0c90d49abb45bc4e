"""One module decides what differs without threads of our own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import chatmemory

PACKAGE = Path(chatmemory.__file__).parent
ALLOWED = ("conf.py", "checks/", "database/pool.py", "testing/cases.py")
"""The setting and its checks; `Threads` and `InlineThreads`; the setting's value in tests."""
NAMES = {"DB_THREADS", "_test_loop"}


def names_in(path: Path) -> Iterator[str]:
    """The names of a module that could read the setting; not its comments and texts."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                yield name


@pytest.mark.slow
def test_no_other_module_reads_the_setting():
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    assert NAMES.issubset(names_in(modules["database/pool.py"]))
    found = {name for name, path in modules.items() if NAMES.intersection(names_in(path))}
    assert {name for name in found if not name.startswith(ALLOWED)} == set()
