"""The examples of the CommonMark specification 0.31.2, by John MacFarlane, CC BY-SA 4.0.

They are read from the npm package `commonmark-spec`, which tests/js/package.json installs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import missing

PATH = Path(__file__).parents[1] / "js/node_modules/commonmark-spec/spec.txt"

_EXAMPLE = re.compile(
    r"^`{32} example\n(.*?)^\.\n(.*?)^`{32}$|^#{1,6} *([^\n]*)$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example: a text and the HTML that it becomes."""

    number: int
    section: str
    text: str
    html: str


def examples() -> list[Example]:
    """Return all examples; the test is skipped if the package is not installed."""
    if not PATH.exists():
        missing("commonmark-spec is not installed (make js installs it)")
    source = PATH.read_text(encoding="utf-8").partition("<!-- END TESTS -->")[0]
    found: list[Example] = []
    section = ""
    for text, html, heading in _EXAMPLE.findall(source):
        if heading:
            section = heading
            continue
        example = Example(
            number=len(found) + 1,
            section=section,
            text=text.replace("→", "\t"),
            html=html.replace("→", "\t"),
        )
        found.append(example)
    return found
