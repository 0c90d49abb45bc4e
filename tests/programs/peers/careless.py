"""Two common hand-written memories, which need no other packages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.programs.peers.base import FilePeer


class Careless(FilePeer):
    make_store = "tests.careless:make"
    fault: str

    @pytest.fixture
    def arguments(self, tmp_path: Any) -> dict[str, Any]:
        return {"fault": self.fault, "path": str(tmp_path / "memory")}


class TestSharedBuffer(Careless):
    column = "one list for all"
    fault = "SharedBuffer"


class TestRewritten(Careless):
    column = "read, changed, written back"
    fault = "Rewritten"
