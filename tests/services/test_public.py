"""The public services: what is exported, documented and available in async code."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

from chatmemory import services

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = runpy.run_path(str(ROOT / "docs/generate/services_page.py"))

WITHOUT_TWIN = {
    "check_integrity": "a lazy iterator: each step is database work, which a thread does",
    "deleting_users": "a context manager without database work",
    "find_text": "a lazy iterator: each step is database work, which a thread does",
    "sessions_of": "returns a lazy queryset, which has async methods of its own",
    "user_scope": "computes a string",
    "verify_audit": "a lazy iterator: each step is database work, which a thread does",
}
"""Exported functions without an async twin, and the reason."""


def exported_functions():
    return REFERENCE["exported_functions"]()


def exported_types():
    return REFERENCE["exported_types"]()


def test_each_exported_function_has_an_exported_twin():
    functions = exported_functions()
    with_twin = {name for name in functions if f"a{name}" in services.__all__}
    assert functions.keys() - with_twin == WITHOUT_TWIN.keys()
    for name in with_twin:
        assert getattr(services, f"a{name}").__wrapped__ is functions[name]


def test_each_exported_coroutine_function_is_a_twin():
    functions = exported_functions()
    for name in services.__all__:
        if inspect.iscoroutinefunction(getattr(services, name)):
            assert name.removeprefix("a") in functions


def test_each_twin_is_one_line_at_the_end_of_the_module_of_its_function():
    for name in exported_functions().keys() - WITHOUT_TWIN.keys():
        source = Path(inspect.getfile(inspect.unwrap(getattr(services, name)))).read_text()
        assert re.search(rf"^a{name} = in_pool\({name}(, lane=\w+)?\)$", source, re.MULTILINE)


def test_each_exported_function_and_type_is_documented():
    undocumented = [
        name
        for name, found in [
            *exported_functions().items(),
            *exported_types().items(),
        ]
        if not inspect.cleandoc(found.__doc__ or "")
    ]
    assert undocumented == []


def test_the_reference_names_the_errors_of_each_function_that_reads_or_writes():
    page = REFERENCE["page"]()
    sections = {part.split("`")[0]: part for part in page.split("### `")[1:]}
    names = [name for name in exported_functions() if name not in WITHOUT_TWIN]
    assert [name for name in names if "Raises" not in sections[name]] == []


def test_each_exported_function_is_in_one_section_of_the_reference():
    listed = [name for names in REFERENCE["SUBJECTS"].values() for name in names]
    assert sorted(listed) == sorted(exported_functions())


@pytest.mark.slow
def test_each_internal_twin_is_used():
    sources = {path: path.read_text() for path in (ROOT / "chatmemory").rglob("*.py")}
    twins = {
        node.targets[0].id
        for source in sources.values()
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and ast.unparse(node.value).startswith("in_pool(")
    }
    internal = twins - {*services.__all__}
    assert len(internal) >= 8
    uses = Counter(word for source in sources.values() for word in re.findall(r"\w+", source))
    assert {name for name in internal if uses[name] < 2} == set()
