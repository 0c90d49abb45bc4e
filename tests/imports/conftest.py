"""Run the command on a file of a product."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from tests.factories import make_user

pytest.importorskip("ijson", reason="the extra `imports` is not installed")


@pytest.fixture
def owner(db: None) -> Any:
    return make_user("mira")


@pytest.fixture
def run(owner, tmp_path, capsys):
    """Import a file with this content; return the report."""

    def run(content: object, *, name: str = "export.json", **options: Any) -> dict[str, Any]:
        file: Path = tmp_path / name
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        file.write_bytes(raw)
        given = {"owner": "mira", "by": "olga", "reason": "a move", "json": True, **options}
        call_command("chatmemory_import", str(file), **given)
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    return run
