"""Each row of docs/reference/bad-inputs*.md names tests that exist, one for each entry."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGES = sorted(TESTS.parent.glob("docs/reference/bad-inputs*.md"))
ROW_COUNT = 112

Rows = list[tuple[int, list[str], dict[str, list[str]]]]


def rows_of(page: str) -> Rows:
    """Return the number, the entries and the tests by entry of each row."""
    rows = []
    for line in page.splitlines():
        if re.match(r"\| \d+ \|", line):
            number, entries, _, _, tests = line.strip("| ").split(" | ")
            rows.append((int(number), entries.split(), _by_entry(tests)))
    return rows


def _by_entry(cell: str) -> dict[str, list[str]]:
    tests: dict[str, list[str]] = {}
    for part in cell.split("<br>"):
        entry, _, names = part.partition(" ")
        function = ""
        for name in re.findall(r"`([^`]+)`", names):
            start, bracket, test_id = name.partition("[")
            function = start or function  # an id alone is one of the test before it
            tests.setdefault(entry, []).append(function + bracket + test_id)
    return tests


def faults_of(page: str) -> Iterator[str]:
    """What is wrong with the table."""
    rows = rows_of(page)
    if sorted(number for number, _, _ in rows) != list(range(1, ROW_COUNT + 1)):
        yield f"The rows are not numbered 1 to {ROW_COUNT}."
    for number, entries, tests in rows:
        if sorted(entries) != sorted(tests):
            yield f"Row {number} is for {entries}, its tests are for {[*tests]}."
        for name in chain.from_iterable(tests.values()):
            if not exists(name):
                yield f"Row {number}: {name} does not exist."


def exists(name: str) -> bool:
    """Whether this test is in a module of the suite, with its id if one is given."""
    address, _, test_id = name.partition("[")
    file, *path = address.split("::")
    module = _parsed(file)
    scope: ast.AST | None = module
    for part in path:
        scope = next((node for node in _body(scope) if getattr(node, "name", "") == part), None)
    if module is None or not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    is_test = path[-1].startswith("test_") and all(part.startswith("Test") for part in path[:-1])
    return is_test and (not test_id or test_id.removesuffix("]") in _ids(module, scope))


@cache
def _parsed(file: str) -> ast.Module | None:
    if not re.fullmatch(r"test_\w+\.py", file):
        return None
    paths = list(TESTS.rglob(file))
    return ast.parse(paths[0].read_text()) if len(paths) == 1 else None


def _body(node: ast.AST | None) -> list[ast.stmt]:
    return getattr(node, "body", [])


def _ids(module: ast.Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The ids that `parametrize` writes out: its `ids`, or the constants that it goes through."""
    ids: set[str] = set()
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[_, values], keywords=more):
                given = [word.value for word in more if word.arg == "ids"]
                ids.update(_constants(module, (given or [values])[0]))
    return ids


def _constants(module: ast.Module, node: ast.expr) -> Iterator[str]:
    """The texts and numbers in a list, and the keys of a dictionary."""
    match node:
        case ast.Name(id=name):
            for statement in module.body:
                match statement:
                    case (
                        ast.Assign(targets=[ast.Name(id=known)], value=value)
                        | ast.AnnAssign(target=ast.Name(id=known), value=ast.expr() as value)
                    ) if known == name:
                        yield from _constants(module, value)
        case ast.List(elts=nodes) | ast.Tuple(elts=nodes) | ast.Dict(keys=nodes):
            yield from (str(each.value) for each in nodes if isinstance(each, ast.Constant))


@pytest.mark.slow
def test_each_bad_input_has_a_test_for_each_entry():
    assert len(PAGES) == 2
    assert [*faults_of("\n".join(page.read_text() for page in PAGES))] == []


KNOWN = "test_bad_inputs.py::test_a_fault_of_the_table_is_reported"
FAULTS = {
    "row missing": ("| 2 |", "| 3 |"),
    "row duplicated": ("| 2 |", "| 1 |"),
    "entry without a test": ("| 2 | W |", "| 2 | W R |"),
    "test of no entry": ("| 2 | W |", "| 2 | A |"),
    "unknown module": (KNOWN, KNOWN.replace("inputs", "outputs")),
    "unknown test": (KNOWN, f"{KNOWN}_twice"),
    "helper": (KNOWN, "test_bad_inputs.py::rows_of"),
    "unknown id": ("[row missing]", "[row lost]"),
    "unknown id alone": ("`[helper]`", "`[helpers]`"),
}


@pytest.mark.parametrize(("right", "wrong"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_table_is_reported(right, wrong, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROW_COUNT", 2)
    first = f"| 1 | W R | x | y | W `{KNOWN}`<br>R `{KNOWN}[row missing]`, `[helper]` |"
    table = f"{first}\n| 2 | W | x | y | W `{KNOWN}` |\n"
    assert [*faults_of(table)] == []
    assert right in table
    assert len([*faults_of(table.replace(right, wrong, 1))]) == 1
