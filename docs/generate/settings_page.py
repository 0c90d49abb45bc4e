"""Generates docs/reference/settings.md from the docstrings of the settings."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from chatmemory import conf
from chatmemory.search.conf import SearchSettings

INTRO = """# The settings

One dictionary, `CHATMEMORY`; each key is optional. Durations are in seconds or a `timedelta`.
`manage.py check` reports wrong values and unknown keys. `python docs/generate/settings_page.py`
generates this page from `chatmemory/conf.py` and `chatmemory/search/conf.py`.
"""
APPS = {"chatmemory.search": SearchSettings}
"""The settings of the optional apps."""


def page() -> str:
    """Return the page as Markdown: each setting with default and docstring, in source order."""
    sections = [INTRO, *_sections(conf.Settings)]
    for app, settings in APPS.items():
        sections += _sections(settings, of=f"Of the app `{app}`.\n\n")
    return "\n".join(sections)


def _sections(settings: type[conf.Settings], of: str = "") -> list[str]:
    body = ast.parse(inspect.getsource(settings)).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101  # it is the source of a class
    sections = []
    for assigned, documented in zip(body.body, body.body[1:], strict=False):
        if isinstance(assigned, ast.Assign) and isinstance(documented, ast.Expr):
            name = ast.unparse(assigned.targets[0])
            default = vars(settings)[name].default
            text = inspect.cleandoc(ast.literal_eval(documented.value))
            sections.append(f"## `{name}`\n\n{of}Default: `{default!r}`\n\n{text}\n")
    return sections


if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "reference/settings.md").write_text(page())
