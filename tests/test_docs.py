"""The documentation says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chatmemory import protocol
from chatmemory.errors import BadInput
from project.management.commands import frames_page
from project.management.commands.settings_page import page
from tests import frames

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def test_the_settings_page_is_made_from_the_docstrings():
    assert (ROOT / "docs/settings.md").read_text() == page()


def test_the_page_of_frames_is_made_from_the_schema():
    assert (ROOT / "docs/frames.md").read_text() == frames_page.page()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_within_the_documentation_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def fields_of(cell):
    """The names in a cell such as `**id**, text or content (blocks), running {turn} or null`."""
    bare = re.sub(r"\([^)]*\)|\{[^}]*\}|\[+[^]]*\]+|\bor null\b", "", cell)
    names = re.split(r"[,;]| or ", bare)
    return {name.strip(" *") for name in names} - {""}, set(re.findall(r"\*\*(\w+)\*\*", bare))


def documented(side):
    """The fields of each frame, and the bold ones, as the tables of the protocol's page say."""
    table = (ROOT / "docs/protocol.md").read_text().partition(f"## From the {side}\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table.partition("\n## ")[0], re.MULTILINE)
    return {kind: fields_of(cell) for kind, cell in rows}


@pytest.mark.parametrize("side", ["client", "server"])
def test_the_tables_of_the_protocol_have_the_fields_of_the_schema(side):
    shown = documented(side)
    assert list(shown) == frames.kinds(side)
    for kind, (names, bold) in shown.items():
        schema = frames.SCHEMA["$defs"][kind]
        assert names == {*schema["properties"]} - {"type"}
        required = [
            name for choice in [schema, *schema.get("oneOf", ())] for name in choice["required"]
        ]
        assert bold == ({*required} - {"type"} if side == "client" else set())


def test_each_frame_of_the_client_is_known_to_the_server_and_no_other():
    for name in [*frames.kinds("client"), *frames.kinds("server")]:
        with pytest.raises(BadInput) as refused:
            protocol.parse({"type": name})
        is_known = name in frames.kinds("client")
        assert refused.value.code == ("bad_field" if is_known else "unknown_type")


def test_the_schema_knows_each_code_of_an_error_and_of_a_close():
    text = (ROOT / "docs/protocol.md").read_text().partition("## Codes\n")[2]
    shown, closes = text.partition("In a `bye`")[::2]
    codes = frames.SCHEMA["$defs"]["error"]["properties"]["code"]["enum"]
    listed = shown.partition("over REST:")[2].partition("On a message")[0]
    assert set(re.findall(r"`([a-z_]+)`", listed)) == {*codes}
    known = frames.SCHEMA["$defs"]["bye"]["properties"]["code"]["enum"]
    rows = re.findall(r"^\| (\d{4}) \|", closes, re.MULTILINE)
    assert [int(code) for code in rows] == known
