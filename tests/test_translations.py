"""The German catalogs are complete, and no page of the admin is partly in English."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from gettext import GNUTranslations
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.admin import site
from django.core.management import CommandError, call_command
from django.utils import translation
from django.utils.translation.template import templatize

from chatmemory.admin.jobs.words import error_text
from chatmemory.errors import Held, MemoryUnavailable, Refused
from chatmemory.models import AuditEntry, Job, Turn
from chatmemory.services.audit.seals import seal_audit
from chatmemory.services.jobs.actions import ACTIONS
from tests.admin import scene
from tests.admin.test_translations import CODES, Texts, words_of_data
from tests.catalogs import (
    APP,
    DOMAINS,
    GERMAN,
    PLACEHOLDER,
    WORD,
    english_texts,
    parse_catalog,
    read_catalog,
    words_of_catalogs,
)

TEXT = r"""(?:u?'(?:[^'\\]|\\.)*'|u?"(?:[^"\\]|\\.)*")"""
"""A string literal of JavaScript or Python."""
MARKED = re.compile(rf"\b(?:_|n?gettext)\(\s*({TEXT}(?:\s*\+\s*{TEXT})*)")
MARKED_WITH_CONTEXT = re.compile(rf"\bpgettext\(\s*{TEXT},\s*({TEXT})")


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_text_is_translated(domain):
    catalog = read_catalog(domain)
    assert len(catalog) > 100
    for entry in catalog:
        assert len(entry.translations) == (2 if entry.plural else 1), entry
        assert all(entry.translations), entry
        assert not entry.is_fuzzy, entry


def test_a_fuzzy_entry_is_found():
    fuzzy = '#: a.py\n#, fuzzy, python-format\nmsgctxt "c"\nmsgid "a"\n" b"\nmsgstr ""\n"x"'
    [entry] = parse_catalog(fuzzy)
    assert (entry.key, entry.translations, entry.is_fuzzy) == ("c\x04a b", ["x"], True)
    [entry] = parse_catalog(fuzzy.replace("fuzzy, ", ""))
    assert not entry.is_fuzzy


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_translation_has_the_placeholders_of_its_text(domain):
    for entry in read_catalog(domain):
        texts = (entry.text, entry.plural) if entry.plural else (entry.text,)
        for text, translated in zip(texts, entry.translations, strict=True):
            assert sorted(PLACEHOLDER.findall(translated)) == sorted(PLACEHOLDER.findall(text))


RANGE = {"%(first)s", "%(last)s"}
"""Placeholders of a range, of which a singular may have only the first."""


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_singular_has_the_number_of_its_plural(domain):
    """In Russian the singular is also the form for 21, so "one message" would be wrong."""
    counted = [entry for entry in read_catalog(domain) if entry.plural]
    assert counted
    for entry in counted:
        one, many = ({*PLACEHOLDER.findall(text)} - RANGE for text in (entry.text, entry.plural))
        assert one == many, entry
        assert one, entry


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_translation_begins_and_ends_as_its_text(domain):
    for entry in read_catalog(domain):
        for translated in entry.translations:
            for text in (entry.text, entry.plural or entry.text):
                ends = [(one[0].isspace(), one[-1].isspace()) for one in (text, translated)]
                assert ends[0] == ends[1], entry
            assert mark_at_end(translated) == mark_at_end(entry.text), entry


def mark_at_end(text: str) -> str:
    return text[-1] if text[-1] in ".?:…" else ""


SYNONYMS = {frozenset({"Close", "Dismiss"})}
"""Texts of the chat page with one translation."""


def test_no_text_of_the_chat_page_has_the_translation_of_another_one():
    """As when `makemessages` proposes that of a similar text, and only its mark is removed."""
    texts: dict[str, set[str]] = {}
    for entry in read_catalog("djangojs"):
        for translated in entry.translations:
            texts.setdefault(translated, set()).add(entry.text)
    assert {frozenset(found) for found in texts.values() if len(found) > 1} <= SYNONYMS


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_translation_is_compiled(domain):
    with (GERMAN / f"{domain}.mo").open("rb") as file:
        compiled = GNUTranslations(file)._catalog
    stored = {}
    for entry in read_catalog(domain):
        if entry.plural:
            stored |= {(entry.key, n): text for n, text in enumerate(entry.translations)}
        else:
            stored[entry.key] = entry.translations[0]
    del compiled[""]
    assert compiled == stored


def texts_in(script: str) -> set[str]:
    """Return the texts that a script marks for translation."""
    found = [*MARKED.findall(script), *MARKED_WITH_CONTEXT.findall(script)]
    return {"".join(map(ast.literal_eval, re.findall(TEXT, argument))) for argument in found}


def texts_in_python(code: str) -> set[str]:
    """Return the texts that a module marks for translation."""
    if "gettext" not in code:
        return set()
    found = set()
    for call in ast.walk(ast.parse(code)):
        match call:
            case ast.Call(func=ast.Name(id=name), args=[*given]) if (
                name == "_" or "gettext" in name
            ):
                text = given[1 if "pgettext" in name else 0]
                found |= {str(text.value)} if isinstance(text, ast.Constant) else set()
    return found


def test_each_text_of_the_javascript_is_in_the_catalog():
    scripts = [file.read_text(encoding="utf-8") for file in APP.glob("static/**/*.js")]
    texts = set().union(*map(texts_in, scripts))
    assert {"Send", "Too long by %(count)s character", "Not now"} <= texts
    assert texts - {entry.text for entry in read_catalog("djangojs")} == set()


def test_each_text_of_templates_and_modules_is_in_the_catalog():
    templates = [file.read_text(encoding="utf-8") for file in APP.rglob("*.html")]
    texts = set().union(*(texts_in(templatize(template)) for template in templates))
    assert {"Sign out", "Search in this conversation", "Go", "above"} <= texts
    modules = [file.read_text(encoding="utf-8") for file in APP.rglob("*.py")]
    texts |= set().union(*map(texts_in_python, modules))
    assert {"The model failed.", "Put on hold", "Can purge conversations"} <= texts
    assert texts - {entry.text for entry in read_catalog("django")} == set()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("xgettext") is None, reason="needs GNU gettext")
@pytest.mark.parametrize("domain", DOMAINS)
def test_make_messages_changes_nothing(domain, tmp_path):
    app = tmp_path / "chatmemory"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    makefile = (APP.parent / "Makefile").read_text(encoding="utf-8")
    [options] = re.findall(r"^COLLECT := makemessages (.*)$", makefile, re.MULTILINE)
    command = [sys.executable, str(APP.parent / "manage.py"), "makemessages", *options.split()]
    subprocess.run([*command, "-d", domain], cwd=app, check=True, capture_output=True)  # noqa: S603  # our own command
    renewed = app / GERMAN.relative_to(APP) / f"{domain}.po"
    assert without_time(renewed) == without_time(GERMAN / f"{domain}.po")


def without_time(file: Path) -> str:
    return re.sub(r'"POT-Creation-Date.*\n', "", file.read_text(encoding="utf-8"))


TAGS = re.compile(
    r"(?s)\{% block body_?class %\}.*?endblock %\}|\{% blocktranslate.*?endblocktranslate %\}"
    r"|\{% comment.*?endcomment %\}|\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}"
)


def literals_in(template: str) -> set[str]:
    """Return the words of a template that no tag translates."""
    texts = Texts()
    texts.feed(TAGS.sub("", template))
    return {word for text in texts.found for word in WORD.findall(text)}


def test_no_template_has_a_text_that_no_tag_translates():
    templates = {file: file.read_text(encoding="utf-8") for file in APP.rglob("*.html")}
    assert {"conversation.html", "chart.html"} <= {file.name for file in templates}
    found = {file: literals_in(template) for file, template in templates.items()}
    assert {file: words for file, words in found.items() if words} == {}


def test_a_text_that_no_tag_translates_is_found():
    template = (
        '{% load i18n %}{# no #}<p title="Forgotten">{% translate "a" %} left {{ no }}</p>'
        '{% blocktranslate count n=n %}no{% plural %}no{% endblocktranslate %}<a class="no"></a>'
    )
    assert literals_in(template) == {"Forgotten", "left"}


@pytest.fixture
def german(settings, client) -> Iterator[scene.Scene]:
    """The console in German, full of data in English."""
    shown = scene.make_scene()
    client.force_login(shown.root)
    with translation.override("de"):
        yield shown


def shown_texts(response) -> list[str]:
    texts = Texts()
    texts.feed(response.content.decode())
    return [" ".join(text.replace("\\n", " ").split()) for text in texts.found]


def english_in(response) -> set[str]:
    """Return our English texts in a page, and the words that are neither German nor data."""
    assert response.status_code == 200
    shown = "\n".join(shown_texts(response))
    found = {text for text, pattern in ENGLISH.items() if pattern.search(shown)}
    words = WORD.findall(CODES.sub("", shown.replace(str(site.site_header), "")))
    return found | {word for word in words if not is_known(word)}


@cache
def is_known(word: str) -> bool:
    """Return whether it is German, or data; a snippet of a search begins within a word."""
    return word in KNOWN or any(one.endswith(word) for one in KNOWN)


ENGLISH = english_texts()
KNOWN = words_of_catalogs() | words_of_data()


@pytest.mark.slow
@pytest.mark.django_db
def test_an_english_text_is_found(client, german):
    with translation.override("en"):
        found = english_in(client.get(german.address("session/{talk}/change/")))
    assert {"Notes of operators", "Add note", "Retention"} <= found


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("mode", ["normal", "masked"])
def test_no_page_of_the_console_has_english_texts_in_german(client, german, settings, mode):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": mode}
    pages = scene.all_pages() if mode == "normal" else scene.MASKED
    found = {page.name: english_in(client.get(german.address(page.path))) for page in pages}
    assert {name: texts for name, texts in found.items() if texts} == {}


LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
FIELD = re.compile(r'name="(seen_at|count)"[^>]*? value="(\d+)"')
ARGUMENTS = {"trim": {"limit": "keep_last", "value": "1"}, "tag": {"tag": "vip"}}
ARGUMENTS["untag"] = ARGUMENTS["tag"]


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("name", ACTIONS)
def test_no_answer_to_an_action_is_english_in_german(client, german, name):
    session = {"untag": "talk", **scene.ON}.get(name, "server")
    Turn.objects.filter(lease_until__isnull=False).update(lease_until=LONG_AGO)
    address = german.address(f"session/action/{name}/?session={{{session}}}")
    empty = client.post(address, {})
    given = ARGUMENTS.get(name, {})
    asked = client.post(address, {**given, "preview": "1"})
    fields = dict(FIELD.findall(asked.content.decode()))
    done = client.post(address, {**given, **fields, "reason": "spam"}, follow=True)
    job = Job.objects.latest("pk")
    assert (job.action, job.actor_label) == (name, "root")
    page = client.get(german.address(f"session/jobs/{job.pk}/"))
    undone = client.post(german.address(f"session/jobs/{job.pk}/undo/"), follow=True)
    answers = (empty, asked, done, page, undone, client.get(german.address("auditentry/")))
    assert set().union(*map(english_in, answers)) == set()


@pytest.mark.slow
@pytest.mark.django_db
def test_no_answer_of_the_other_forms_is_english_in_german(client, german):
    seal_audit()
    answers = []
    for path, given in FORMS:
        address = german.address(path)
        answers += [client.post(address, {}, follow=True), client.post(address, given, follow=True)]
    AuditEntry.objects.filter(pk=german.entry.pk).update(reason="other")
    answers.append(client.post(german.address("auditentry/verify/"), {"head": ""}))
    assert "wurde nach der Versiegelung" in answers[-1].content.decode()
    assert set().union(*map(english_in, answers)) == set()


FORMS: tuple[tuple[str, dict[str, str]], ...] = (
    ("session/{talk}/tags/", {"action": "add", "tag": "vip", "reason": "spam"}),
    ("session/{talk}/notes/", {"text": "spam"}),
    ("session/{talk}/messages/6/redact/", {"text": "order", "find": "1"}),
    ("session/{talk}/messages/6/redact/", {"reason": "a key", "count": "1"}),
    ("session/{talk}/messages/6/redact/", {"reason": "a key", "count": "7"}),
    ("session/jobs/{busy}/cancel/", {}),
    ("session/person/erase/?scope={scope}", {"reason": "spam", "confirm": "ann"}),
    ("auditentry/verify/", {"head": "none"}),
)
"""Forms with a page of their own, and what is sent; each is sent empty too."""


@pytest.mark.django_db
def test_an_error_of_a_service_is_in_the_language_of_the_operator():
    with translation.override("de"):
        assert error_text(Held()) == "Das Gespräch ist gesperrt."
        assert error_text(Refused("Nein.")) == "Nein."
        assert error_text(MemoryUnavailable("The list is full.")) == "The list is full."


@pytest.mark.django_db
def test_the_command_that_verifies_is_in_english(german):
    seal_audit()
    AuditEntry.objects.filter(pk=german.entry.pk).update(reason="other")
    output = StringIO()
    with pytest.raises(CommandError):
        call_command("chatmemory_audit_verify", stdout=output)
    assert f"Entry {german.entry.pk} was changed after it was sealed" in output.getvalue()
