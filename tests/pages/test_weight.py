"""The size of what the chat page loads: without a build step, and still small."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import chatmemory

FILES = Path(chatmemory.__file__).parent / "static" / "chatmemory"
IMPORT = re.compile(r'^(?:import|export|\}) .*?"(\.[^"]+)";$', re.MULTILINE)
MAX_BYTES = 130 * 1024
MAX_GZIPPED_BYTES = 40 * 1024
"""Of all files in one archive."""


def imported_by(path: Path, known: set[Path]) -> set[Path]:
    """Return a script and the scripts that it imports, directly or not."""
    if path not in known:
        known.add(path)
        for name in IMPORT.findall(path.read_text()):
            imported_by((path.parent / name).resolve(), known)
    return known


def test_script_and_style_of_the_chat_page_are_small():
    scripts: set[Path] = set()
    for name in ("element/chat.js", "list/chats.js"):
        imported_by((FILES / name).resolve(), scripts)
    styles = ("element/chat.css", "list/chats.css", "shared/frame.css")
    files = [*sorted(scripts), *(FILES / name for name in styles)]
    names = {file.name for file in files}
    assert {"chat.js", "chat-words.js", "view.js", "outbox.js", "ids.js"} <= names
    assert {"chats.js", "marks.js"} <= names
    assert {"chatmemory-rest.js", "menu.css", "drawer.js", "reply.js"}.isdisjoint(names)
    content = b"".join(file.read_bytes() for file in files)
    size, gzipped = len(content), len(gzip.compress(content))  # assert would print the content
    assert size <= MAX_BYTES
    assert gzipped <= MAX_GZIPPED_BYTES
