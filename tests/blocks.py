"""Reads the code blocks of the pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parent.parent


def pages_in_docs() -> list[Path]:
    """Return the pages of the folder `docs`, without those of the packages of its examples."""
    return [path for path in (ROOT / "docs").rglob("*.md") if "node_modules" not in path.parts]


PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages_in_docs())
)
FENCE = re.compile(r"^( *)(`{3,}|~{3,})(\w*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
REASON = re.compile(r"<!-- not run: ([^>]+) -->\n *$")
MANAGE = "python manage.py "


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str
    language: str
    text: str
    reason: str
    """Why it is not run; empty otherwise."""
    chapter: str
    """The heading above it."""

    @property
    def commands(self) -> list[str]:
        """The lines of a shell, without those that continue one."""
        joined = self.text.replace("\\\n", " ")
        return [line for line in joined.splitlines() if line] if self.language == "sh" else []

    @property
    def is_manage(self) -> bool:
        """Whether it consists of commands of manage.py."""
        return bool(self.commands) and all(line.startswith(MANAGE) for line in self.commands)


def blocks(page: str) -> list[Block]:
    """Return the code blocks of a page, in its order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for fence in FENCE.finditer(text):
        before = text[: fence.start()]
        reason = REASON.search(before)
        headings = re.findall(r"^## (.+)$", FENCE.sub("", before), re.MULTILINE)
        chapter = headings[-1] if headings else ""
        content = dedent(fence[4])
        found.append(Block(page, fence[3], content, reason[1] if reason else "", chapter))
    return found


def block_with(page: str, piece: str) -> Block:
    """Return the one block of a page that contains a text."""
    [found] = [block for block in blocks(page) if piece in block.text]
    return found
