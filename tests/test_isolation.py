"""No test depends on those that ran before it in the same process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chatmemory.rendering.markdown import _cache, markdown

TESTS = Path(__file__).parent


AUTOUSE = re.compile(r"^@pytest\.fixture\([^)]*autouse=True\)\n(?:async )?def (\w+)", re.MULTILINE)


def autouse_fixtures(path: Path) -> set[str]:
    return set(AUTOUSE.findall(path.read_text(encoding="utf-8")))


def test_no_module_replaces_a_fixture_of_all_tests():
    # It would not run there, and never if this module is the first of its process.
    of_all = autouse_fixtures(TESTS / "conftest.py")
    modules = [path for path in TESTS.rglob("*.py") if path != TESTS / "conftest.py"]
    own = {path.name: autouse_fixtures(path) & of_all for path in modules}
    assert len(of_all) > 3
    assert not {name: names for name, names in own.items() if names}


@pytest.mark.parametrize("time", ["first", "second"])
def test_no_html_of_an_earlier_test_is_cached(time):
    assert not _cache._html
    markdown("A text.")
    assert _cache._html
