"""The types that JavaScript declares."""

from __future__ import annotations

import re
from pathlib import Path

import chatmemory

STATIC = Path(chatmemory.__file__).parent / "static" / "chatmemory"


def fields_of(name: str, file: str = "client/types.d.ts") -> dict[str, bool]:
    """Return the fields of an interface, and whether each is required."""
    script = (STATIC / file).read_text(encoding="utf-8")
    pattern = rf"^export interface {name}(?: extends (\w+))? {{\n(.*?)^}}"
    body = re.search(pattern, script, re.MULTILINE | re.DOTALL)
    assert body, name
    found = re.findall(r"^  (\w+)(\??):", body[2], re.MULTILINE)
    inherited = fields_of(body[1], file) if body[1] else {}
    return inherited | {field: not optional for field, optional in found}
