"""No dependency is older than the first version without a vulnerability that concerns this app."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent

LOWEST = {
    "Django": ("5.2.19", "CVE-2026-33034, CVE-2026-5766: request bodies above the limit"),
    "channels": ("3.0.3", "CVE-2020-35681: the data of another request"),
    "daphne": ("4.2.2", "CVE-2026-44545, CVE-2026-44546: unlimited messages, smuggled headers"),
    "djangorestframework": ("3.17.2", "CVE-2026-73228: JSON bodies above the limit"),
    "langchain-core": ("1.3.3", "CVE-2026-44843: deserialization of any class"),
    "langsmith": ("0.9.1", "GHSA-f4xh-w4cj-qxq8"),
    "markdown-it-py": ("4.0.0", "markdown-it issue 1000: tables of quadratic size"),
    "redis": ("4.5.4", "CVE-2023-28858, CVE-2023-28859: the answer of another request"),
    "twisted": ("26.4.0", "CVE-2026-42304: compressed names"),
}


def requirements() -> dict[str, list[Requirement]]:
    """Return the requirements of the app and its extras, by name in lower case."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *chain.from_iterable(project["optional-dependencies"].values()),
    ]
    found: dict[str, list[Requirement]] = {}
    for requirement in map(Requirement, lines):
        found.setdefault(requirement.name.lower(), []).append(requirement)
    return found


def locked() -> dict[str, Version]:
    """Return the versions that CI installs, by name in lower case."""
    lines = (ROOT / ".ci/constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line]
    return {name.lower().replace("_", "-"): Version(number) for name, number in pairs}


@pytest.mark.parametrize("name", LOWEST)
@pytest.mark.regression
def test_no_allowed_or_installed_version_has_a_known_vulnerability(name):
    lowest_version, reason = LOWEST[name]
    for requirement in requirements().get(name.lower(), ()):
        lowest = [Version(re.sub(r"\.\*$", "", part.version)) for part in requirement.specifier]
        assert min(lowest) >= Version(lowest_version), reason
    assert locked()[name.lower()] >= Version(lowest_version), reason
    try:
        installed = version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    assert Version(installed) >= Version(lowest_version), reason


def test_each_direct_dependency_is_locked_within_its_range():
    for name, ranges in requirements().items():
        if name in {"django-chatmemory", "setuptools"}:
            continue  # this project, and a package that every environment has
        for requirement in ranges:
            assert locked()[name] in requirement.specifier, requirement
