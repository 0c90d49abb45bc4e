"""The documentation says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chatmemory import protocol
from chatmemory.errors import BadInput
from project.management.commands.settings_page import page

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def test_the_settings_page_is_made_from_the_docstrings():
    assert (ROOT / "docs/settings.md").read_text() == page()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_within_the_documentation_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_each_frame_of_the_client_that_is_documented_is_known():
    table = (ROOT / "docs/protocol.md").read_text().partition("## From the server")[0]
    names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert len(names) == 5
    for name in names:
        with pytest.raises(BadInput) as refused:
            protocol.parse({"type": name})
        assert refused.value.code == "bad_field"  # known, but for its fields
