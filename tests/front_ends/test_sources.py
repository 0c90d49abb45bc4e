"""The examples stay short, and their lock files work with any registry."""

from __future__ import annotations

import json

import pytest

from tests.front_ends.node import EXAMPLES, HERE

MAX_LINES = 80
"""Without blank lines and comments."""
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/package.json"))
each_example = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
each_lock = pytest.mark.parametrize("folder", [HERE, *FOLDERS], ids=lambda folder: folder.name)


@each_example
def test_an_example_has_few_lines_of_its_own(folder):
    lines = [line for path in (folder / "src").iterdir() for line in path.read_text().split("\n")]
    code = [line for line in lines if line.strip() and not line.strip().startswith("//")]
    assert 0 < len(code) <= MAX_LINES


@each_lock
def test_a_lock_file_has_a_digest_of_each_package_and_no_address(folder):
    packages = json.loads((folder / "package-lock.json").read_text())["packages"]
    locked = {name: package for name, package in packages.items() if name}
    assert [name for name, package in locked.items() if "resolved" in package] == []
    assert [name for name, package in locked.items() if "integrity" not in package] == []


@each_lock
def test_a_lock_file_is_of_its_package(folder):
    package = json.loads((folder / "package.json").read_text())
    locked = json.loads((folder / "package-lock.json").read_text())["packages"][""]
    kinds = ("dependencies", "devDependencies")
    assert {kind: locked.get(kind) for kind in kinds} == {kind: package.get(kind) for kind in kinds}


@each_lock
def test_a_lock_file_has_the_packages_of_all_platforms(folder):
    """Else `npm ci` fails: a registry that lacks a platform's package leaves it out."""
    packages = json.loads((folder / "package-lock.json").read_text())["packages"]
    locked = {name.rpartition("node_modules/")[2] for name in packages}
    for package in packages.values():
        assert {*package.get("optionalDependencies", {})} <= locked
