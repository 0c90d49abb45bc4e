"""The public services: what is exported, documented and available in an event loop."""

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

MAX_NAMES = 80
"""A host reads the list in five minutes. What only our own code calls is imported by module."""

ASYNC = {
    *("open_session", "list_sessions", "get_session", "update_session"),
    *("append_messages", "read_page", "read_history"),
    *("admit_turn", "stop_turn", "list_turns", "get_turn", "set_feedback"),
    *("clear_session", "begin_export"),
    *("issue_ticket", "use_ticket", "create_visitor", "authenticate_visitor"),
}
"""The functions that answer a person in a chat, which a host can call in an event loop."""

WITHOUT_DATABASE = {"deleting_users", "sessions_of", "user_scope"}
"""A context manager, a lazy queryset and a text."""


def exported_functions():
    return REFERENCE["exported_functions"]()


def exported_types():
    return REFERENCE["exported_types"]()


def test_the_services_have_few_names():
    assert len(services.__all__) <= MAX_NAMES


def test_the_reference_names_each_exported_name():
    page = (ROOT / "docs/reference/services.md").read_text()
    headings = set(re.findall(r"`(\w+)`", "\n".join(re.findall("^### .*$", page, re.MULTILINE))))
    assert {*services.__all__} - headings == {"SERVER"}
    assert "`SERVER`, the scope of your own code" in page


def test_the_functions_that_answer_a_person_have_an_exported_async_version():
    functions = exported_functions()
    versions = {
        name for name in services.__all__ if inspect.iscoroutinefunction(getattr(services, name))
    }
    assert versions == {f"a{name}" for name in ASYNC}
    for name in ASYNC:
        assert getattr(services, f"a{name}").__wrapped__ is functions[name]


def test_no_exported_function_has_an_async_version_that_is_not_exported():
    modules = {
        name: inspect.getmodule(inspect.unwrap(function))
        for name, function in exported_functions().items()
    }
    assert {name for name, module in modules.items() if hasattr(module, f"a{name}")} == ASYNC


def test_each_async_version_is_one_line_at_the_end_of_the_module_of_its_function():
    for name in ASYNC:
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
    names = [name for name in exported_functions() if name not in WITHOUT_DATABASE]
    assert [name for name in names if "Raises" not in sections[name]] == []


def test_each_exported_function_is_in_one_section_of_the_reference():
    listed = [name for names in REFERENCE["SUBJECTS"].values() for name in names]
    assert sorted(listed) == sorted(exported_functions())


@pytest.mark.slow
def test_each_internal_async_version_is_used():
    sources = {path: path.read_text() for path in (ROOT / "chatmemory").rglob("*.py")}
    versions = {
        node.targets[0].id
        for source in sources.values()
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and ast.unparse(node.value).startswith("in_pool(")
    }
    internal = versions - {*services.__all__}
    assert len(internal) >= 8
    uses = Counter(word for source in sources.values() for word in re.findall(r"\w+", source))
    assert {name for name in internal if uses[name] < 2} == set()
