"""The size of what the chat page loads: without a build step, and still small."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import chatmemory

FILES = Path(chatmemory.__file__).parent / "static" / "chatmemory"
IMPORT = re.compile(r'^(?:import|export|\}) .*?"(\.[^"]+)";$', re.MULTILINE)
MAX_BYTES = 130_000
MAX_GZIPPED_BYTES = 40_000
"""Of all files in one archive."""


def imported_by(path: Path, known: set[Path]) -> set[Path]:
    """Return a script and the scripts that it imports, directly or not."""
    if path not in known:
        known.add(path)
        for name in IMPORT.findall(path.read_text()):
            imported_by((path.parent / name).resolve(), known)
    return known


def test_script_and_style_of_the_chat_page_are_small():
    files = [*sorted(imported_by((FILES / "chat.js").resolve(), set())), FILES / "chat.css"]
    names = {file.name for file in files}
    assert {"chat.js", "chat-words.js", "view.js", "reply.js", "outbox.js", "ids.js"} <= names
    assert "chatmemory-rest.js" not in names
    content = b"".join(file.read_bytes() for file in files)
    assert len(content) <= MAX_BYTES
    assert len(gzip.compress(content)) <= MAX_GZIPPED_BYTES
