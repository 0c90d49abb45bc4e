"""The React components of docs/howto/front-end.md have valid syntax, and use the client's types."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.blocks import block_with, blocks
from tests.conftest import missing
from tests.js.declared import STATIC

HERE = Path(__file__).parent
PAGE = "docs/howto/front-end.md"
COMPONENTS = {block.text for block in blocks(PAGE) if block.language == "jsx"}

REACT = """
declare module "react" {
  type Client = import("%(static)s/client/chatmemory-client.js").ChatMemoryClient;
  export function useEffect(effect: () => void | (() => void), on: unknown[]): void;
  export function useState(start: null): [Client | null, (next: Client) => void];
  export function useState<T>(start: T): [T, (next: T | ((now: T) => T)) => void];
}
declare namespace JSX {
  type Element = unknown;
  interface IntrinsicElements {
    [name: string]: object;
  }
}
"""
"""The types of React that the components use; React itself is no dependency."""


def errors_in(components: set[str], folder: Path) -> list[str]:
    """Return what the type checker reports of the components."""
    tsc = HERE / "node_modules/.bin/tsc"
    if not tsc.exists():
        pytest.skip("the packages of tests/js are not installed: make js installs them")
    (folder / "login.js").write_text(block_with(PAGE, "// src/login.js").text)
    (folder / "react.d.ts").write_text(REACT % {"static": STATIC})
    for number, text in enumerate(components):
        (folder / f"{number}.jsx").write_text(with_static_import(text))
    options = {"strict": False, "jsx": "preserve", "types": []}
    config = {"extends": str(HERE / "tsconfig.json"), "compilerOptions": options, "include": ["*"]}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    node = shutil.which("node") or missing("Node.js is not installed")
    result = subprocess.run(  # noqa: S603  # our own files
        [node, str(tsc), "-p", str(folder)], capture_output=True, text=True, check=False
    )
    assert bool(result.stdout) == bool(result.returncode), result.stderr
    return result.stdout.splitlines()


def with_static_import(component: str) -> str:
    """Return the component with an import whose types are known, from the files of the app."""
    [(line, name, path)] = re.findall(
        r'^(const (\w+) = "/static/chatmemory/(.*)";)$', component, re.MULTILINE
    )
    text = component.replace(line, "").replace(f"/* @vite-ignore */ {name}", f'"{STATIC / path}"')
    assert text.count(str(STATIC)) == 1
    return text


@pytest.mark.slow
def test_the_components_have_valid_types(node, tmp_path):
    assert len(COMPONENTS) == 2
    assert errors_in(COMPONENTS, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "wrong", "code"),
    [
        ("</form>", "</from>", "TS17002"),  # JSX element without its end
        ("client.streams", "client.stream", "TS2551"),  # no such property
    ],
)
def test_a_mistake_in_a_component_is_found(node, tmp_path, text, wrong, code):
    changed = {component.replace(text, wrong) for component in COMPONENTS}
    assert changed != COMPONENTS
    assert any(code in error for error in errors_in(changed, tmp_path))
