"""The examples of two specifications of Markdown, CC BY-SA 4.0.

CommonMark 0.31.2, by John MacFarlane, is read from the npm package `commonmark-spec`, which
tests/js/package.json installs. GitHub Flavored Markdown 0.29, by GitHub and John MacFarlane, is in
no package: the environment variable `GFM_SPECIFICATION` names a copy of `test/spec.txt` of
https://github.com/github/cmark-gfm.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "js/node_modules/commonmark-spec/spec.txt"

_EXAMPLE = re.compile(
    r"^`{32} example([^\n]*)\n(.*?)^\.\n(.*?)^`{32}$|^#{1,6} *([^\n]*)$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example: a text and the HTML that it becomes."""

    number: int
    section: str
    extension: str
    """The name of the extension in GitHub's specification, "" for none."""
    text: str
    html: str


def examples() -> list[Example]:
    """Return all examples of CommonMark; skip the test if the package is not installed."""
    if not PATH.exists():
        pytest.skip("commonmark-spec is not installed: make js installs it")
    return _examples_in(PATH)


def extension_examples() -> list[Example]:
    """Return the examples of GitHub's extensions; skip the test without `GFM_SPECIFICATION`."""
    path = os.environ.get("GFM_SPECIFICATION")
    if not path:
        pytest.skip("GFM_SPECIFICATION names no copy of GitHub's specification")
    return [example for example in _examples_in(Path(path)) if example.extension]


def _examples_in(path: Path) -> list[Example]:
    source = path.read_text(encoding="utf-8").partition("<!-- END TESTS -->")[0]
    found: list[Example] = []
    section = ""
    for extension, text, html, heading in _EXAMPLE.findall(source):
        if heading:
            section = heading
            continue
        example = Example(
            number=len(found) + 1,
            section=section,
            extension=extension.strip(),
            text=text.replace("→", "\t"),
            html=html.replace("→", "\t"),
        )
        found.append(example)
    return found
