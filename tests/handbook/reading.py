"""Reads the steps of the how-tos: the labels, commands and files of a chapter in its order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent

from django.core.management import get_commands, load_command_class

from tests.management.commanding import run

FOLDER = Path(__file__).resolve().parents[2] / "docs/howto"
PAGES = (
    "backup",
    "daily-jobs",
    "erasure",
    "handbook",
    "holds",
    "monitoring",
    "redaction",
    "removal",
    "roles",
    "upgrading",
)
"""Pages with steps."""
FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LABEL = re.compile(r"\*\*([^*]+)\*\*")
MANAGE = ("python manage.py ", "/srv/example/manage ")


def slug(title: str) -> str:
    """Return the name of the test of a chapter: a heading in lower case, with underscores."""
    return re.sub(r"\W+", "_", title.lower()).strip("_")


def chapters() -> dict[str, str]:
    """Return the text of each chapter with a label; that of "Legal hold" is in `legal_hold`."""
    found = {}
    for page in PAGES:
        text = (FOLDER / f"{page}.md").read_text()
        _, *parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
        for title, chapter in zip(parts[::2], parts[1::2], strict=True):
            if LABEL.search(FENCE.sub("", chapter)) or slug(title) == "backup_and_restore":
                assert slug(title) not in found, title
                found[slug(title)] = chapter
    return found


class Chapter:
    """What a test of a chapter must do: use each label and each block once, in their order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._rest = list(_parts(text))

    def label(self, text: str) -> None:
        """Consume the next label. Raises AssertionError if the page has another one here."""
        found = self._next()
        assert found == ("label", text), f"the page has {found} here, not {text!r}"

    def run(self, command: str, **replaced: str) -> tuple[int, str]:
        """Run the next command of the page as it is written; return its status and output.

        `replaced` are texts of the page and what they are in the test.
        """
        name, *args = shlex.split(_manage(self.line(command, **replaced)))
        return run(name, *args)

    def line(self, start: str, **replaced: str) -> str:
        """Consume the next line of a shell; it must start with a command."""
        kind, line = self._next()
        assert (kind, _manage(line).split()[0]) == ("sh", start), line
        return _with(line, replaced)

    def file(self, language: str, **replaced: str) -> str:
        """Consume the next file of the page."""
        kind, text = self._next()
        assert kind == language, text
        return _with(text, replaced)

    def assert_done(self) -> None:
        """Assert that the test has consumed the whole chapter."""
        assert self._rest == [], f"the test does not use {self._rest}"

    def _next(self) -> tuple[str, str]:
        assert self._rest, "the chapter has ended"
        return self._rest.pop(0)


def _parts(text: str) -> Iterator[tuple[str, str]]:
    end = 0
    for block in FENCE.finditer(text):
        yield from (("label", label) for label in LABEL.findall(text[end : block.start()]))
        language, content = block[1], dedent(block[2])
        if language == "sh" and "#!" not in content:
            lines = content.replace("\\\n", "").splitlines()
            yield from (("sh", line.strip()) for line in lines if line.strip())
        else:
            yield "script" if language == "sh" else language, content
        end = block.end()
    yield from (("label", label) for label in LABEL.findall(text[end:]))


def _manage(line: str) -> str:
    for start in MANAGE:
        line = line.removeprefix(start)
    return line


def _with(text: str, replaced: Mapping[str, str]) -> str:
    for name, value in replaced.items():
        text = text.replace(NAMES[name], value)
    return text


NAMES = {
    "project": "/srv/example",
    "disk": "/mnt/audit",
    "backups": "/mnt/backup",
    "settings": "/etc/example/env",
    "database": "--dbname=example",
    "scope": "user:7",
    "leak": "~/leak",
    "owner": "-o example",
    "day": "2026-05-04",
}
"""Names of the page that a test replaces."""


def check_command(line: str) -> str:
    """Assert that a line calls a command of manage.py with options that it has; return its name."""
    found = re.search(r"manage(?:\.py)? (chatmemory_\w+)([^>|;&]*)", line)
    assert found, line
    name, rest = found.groups()
    parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
    parser.parse_args(shlex.split(rest))  # exits with wrong options
    return name
