"""Every text of the admin can be translated."""

from __future__ import annotations

import ast
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from django.utils import translation

from chatmemory.errors import ModelError
from tests.admin import scene

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

SHOWN = ("title", "aria-label", "placeholder", "alt")
"""Attributes whose values are shown or read aloud."""
CODES = re.compile(
    r"\w+_\w+|(user|order|server|gone)[:-]\d+|[0-9a-f]{64}|jsonl|langchain|openai|markdown|csv|blocked|database"
    r"|(turns|feedback|messages|sessions):? \d+"  # of the commands
    r"|trim of conversation \d+ by root|\d+ assistant"  # names of rows in Django's own pages
)
"""Codes and names that stay the same in all languages."""


class Texts(HTMLParser):
    """Collects what a page shows."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.hidden = 0

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.hidden += tag in ("script", "style")
        is_button = tag == "input" and given.get("type") in ("submit", "button")
        names = (*SHOWN, "value") if is_button else SHOWN
        self.found += [given[name] for name in names if given.get(name)]

    def handle_endtag(self, tag):
        self.hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if not self.hidden and data.strip():
            self.found.append(data.strip())


@pytest.fixture
def marked(monkeypatch):
    """Mark each translated text, in place of a translation."""
    monkeypatch.setattr(translation._trans, "gettext", "⟦{}⟧".format)
    monkeypatch.setattr(translation._trans, "pgettext", lambda _context, text: f"⟦{text}⟧")
    monkeypatch.setattr(
        translation._trans, "ngettext", lambda one, many, n: f"⟦{one if n == 1 else many}⟧"
    )
    monkeypatch.setattr(
        translation._trans,
        "npgettext",
        lambda _context, one, many, n: f"⟦{one if n == 1 else many}⟧",
    )


def words_of_data():
    """Return the words in the data of the scene."""
    module = ast.parse(Path(scene.__file__).read_text(encoding="utf-8"))
    texts = [
        node.value
        for store in module.body
        if isinstance(store, ast.FunctionDef) and store.lineno > START
        for node in ast.walk(store)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    texts += [scene.REPLY, scene.LONG, "user", "server"]
    return {word for text in texts for word in WORD.findall(text)}


START = scene.make_scene.__code__.co_firstlineno - 1
WORD = re.compile(r"[^\W\d_]{2,}")


def untranslated(page, known):
    """Return the words of a page that are neither translated nor data."""
    texts = Texts()
    texts.feed(page)
    left, depth = "", 0
    for char in "\n".join(texts.found):
        depth += (char == "⟦") - (char == "⟧")
        left += "" if depth or char == "⟧" else char
    # A snippet of a search begins within a word.
    words = WORD.findall(CODES.sub("", left.replace("\\n", " ")))
    # Other tests define errors, whose codes the list of sessions offers.
    codes = {kind.code for kind in ModelError.__subclasses__()}
    return {word for word in words if not any(one.endswith(word) for one in {*known, *codes})}


@pytest.mark.parametrize("mode", ["normal", "masked"])
def test_each_text_can_be_translated(client, marked, settings, mode):
    shown = scene.make_scene()
    client.force_login(shown.root)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": mode}
    known = words_of_data()
    found = {
        page.name: untranslated(client.get(shown.address(page.path)).content.decode(), known)
        for page in (scene.all_pages() if mode == "normal" else scene.MASKED)
    }
    assert {name: words for name, words in found.items() if words} == {}


def test_a_text_without_a_translation_is_found():
    page = (
        '<h1>⟦Trim⟧ ⟦of ⟦now⟧⟧</h1><a title="Forgotten">⟦A⟧</a><p>Where left</p><script>x</script>'
    )
    assert untranslated(page, {"Where"}) == {"Forgotten", "left"}
