"""The words of the admin: what the code calls a session is a conversation for operators."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils.translation.template import templatize

import chatmemory
from chatmemory.models import installed_models
from tests.admin import scene
from tests.admin.test_translations import Texts

APP = Path(chatmemory.__file__).parent
SESSION = re.compile(r"\bsessions?\b", re.IGNORECASE)
MODULES = ("admin/**/*.py", "models/*.py", "services/health/*.py", "statistics/**/*.py")
TEMPLATES = ("templates/admin/**/*.html", "statistics/templates/**/*.html")
CODES = (
    re.compile(r"%\(sessions\)s"),  # a parameter of a text
    re.compile(r"\bsessions:? \d+"),  # the name of a count, as in the CSV file of the audit
)
"""Where the word is a code, not a text: operators have it in programs and files too."""


def marked_in(code: str) -> Iterator[str]:
    """Yield the texts that Python code marks for translation, with all plurals."""
    for call in ast.walk(ast.parse(code)):
        match call:
            case ast.Call(func=ast.Name(id=name)) if name == "_" or "gettext" in name:
                for argument in call.args:
                    if isinstance(argument, ast.Constant):
                        yield str(argument.value)


def with_session(texts: Iterator[str]) -> set[str]:
    """Return the texts with the word, outside of the codes."""
    found = set()
    for text in texts:
        left = text
        for code in CODES:
            left = code.sub("", left)
        if SESSION.search(left):
            found.add(text)
    return found


def files(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        for file in APP.glob(pattern):
            yield file.read_text(encoding="utf-8")


def test_no_text_of_the_code_has_the_word():
    texts = {text for code in files(MODULES) for text in marked_in(code)}
    assert {"conversation", "Can purge conversations", "Conversations created"} <= texts
    assert with_session(iter(texts)) == set()


def test_no_text_of_a_template_has_the_word():
    texts = {
        text
        for template in files(TEMPLATES)
        for text in re.findall(r"gettext\((.*?)\) ", templatize(template) + " ")
    }
    assert any("Search in this conversation" in text for text in texts)
    assert with_session(iter(texts)) == set()


def test_no_name_of_a_model_or_permission_has_the_word():
    names = {
        str(name)
        for model in installed_models()
        for name in (
            *(model._meta.verbose_name, model._meta.verbose_name_plural),
            *(label for _, label in model._meta.permissions),
        )
    }
    assert {"conversation", "conversation tags", "Can put conversations on hold"} <= names
    assert with_session(iter(names)) == set()


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("mode", ["normal", "masked"])
def test_no_page_shows_the_word(client, settings, mode):
    shown = scene.make_scene()
    client.force_login(shown.root)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": mode}
    found = {}
    for page in scene.all_pages() if mode == "normal" else scene.MASKED:
        texts = Texts()
        texts.feed(client.get(shown.address(page.path)).content.decode())
        found[page.name] = with_session(iter(texts.found))
    assert {name: texts for name, texts in found.items() if texts} == {}
