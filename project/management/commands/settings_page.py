"""The settings page of the documentation, from the docstrings."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from django.core.management.base import BaseCommand

from chatmemory import conf

INTRO = """# The settings

One dictionary, `CHATMEMORY`, each key optional; durations are in seconds or a `timedelta`.
`manage.py check` reports wrong values and unknown keys. Made by `manage.py settings_page`.
"""


class Command(BaseCommand):
    """Prints the page."""

    help = __doc__

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(page(), ending="")


def page() -> str:
    """The page as Markdown: each setting with its default and its docstring, in order."""
    body = ast.parse(inspect.getsource(conf.Settings)).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101  # it is the source of a class
    sections = [INTRO]
    for assigned, documented in zip(body.body, body.body[1:], strict=False):
        if isinstance(assigned, ast.Assign) and isinstance(documented, ast.Expr):
            name = ast.unparse(assigned.targets[0])
            default = vars(conf.Settings)[name].default
            text = inspect.cleandoc(ast.literal_eval(documented.value))
            sections.append(f"## `{name}`\n\nDefault: `{default!r}`\n\n{text}\n")
    return "\n".join(sections)
