"""Values of people in the HTML of the admin and the chat pages: always escaped."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.validators import validate_email
from django.db.models import Value
from django.db.models.functions import Concat, Left

import chatmemory
import project
from chatmemory import services
from chatmemory.models import (
    AuditEntry,
    Feedback,
    Job,
    JobItem,
    Maintenance,
    Message,
    Session,
    SessionNote,
    SessionTag,
    Turn,
)
from chatmemory.statistics.models import DailyTurns
from tests.admin.scene import MASKED, all_pages, make_scene
from tests.admin.visits import LIST, operator, talk_of
from tests.factories import make_user
from tests.pages.test_chats import PAGES as CHAT_PAGES

TAG = "<img/src=x>"
NAME = f'"{TAG}"@x.example'
"""A quoted local part is a valid e-mail address, so a sign-up by e-mail stores it as the name."""

SINKS = ("help_text", "search_help_text", "label", "description", "short_description")
"""What Django or a theme prints with `|safe`."""


@pytest.mark.django_db
@pytest.mark.regression
def test_the_page_that_erases_a_person_escapes_the_name():
    validate_email(NAME)
    owner = make_user(NAME)
    talk_of(owner)
    client = operator("view_session", "erase_person")
    page = client.get(f"{LIST}person/erase/", {"scope": services.user_scope(owner)})
    assert page.status_code == 200
    assert "&lt;img/src" in page.content.decode()
    assert "<img/src" not in page.content.decode()


def _is_formatted(node: ast.AST) -> bool:
    """Whether an expression puts a value into a text, other than by `format_html`."""
    match node:
        case ast.Call(func=ast.Name(id="format_html" | "format_html_join")):
            return False
        case ast.JoinedStr() | ast.BinOp(op=ast.Mod()):
            return True
        case ast.Call(func=ast.Attribute(attr="format")):
            return True
    return any(_is_formatted(child) for child in ast.iter_child_nodes(node))


def _sinks(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the values of the arguments, attributes and messages that may be printed as HTML."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.keyword(arg=str(name), value=value)
                | ast.Assign(targets=[ast.Attribute(attr=name)], value=value)
            ) if name in SINKS:
                yield value
            case ast.ClassDef(body=lines):
                for line in lines:
                    match line:
                        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in SINKS:
                            yield value
            case (
                ast.Call(func=ast.Attribute(value=ast.Name(id="messages")))
                | ast.Call(func=ast.Attribute(attr="message_user"))
            ):
                yield from node.args[1:]


def unescaped_sinks(source: str) -> list[int]:
    """Return the lines that put a value into a text that may be printed as HTML."""
    if not re.search(rf"{'|'.join(SINKS)}|messages\.|message_user", source):
        return []
    tree = ast.parse(source)
    found = {sink.lineno for sink in _sinks(tree) if _is_formatted(sink)}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            formatted = _formatted_names(function)
            found |= {
                sink.lineno
                for sink in _sinks(function)
                if isinstance(sink, ast.Name) and sink.id in formatted
            }
    return sorted(found)


def _formatted_names(function: ast.FunctionDef) -> set[str]:
    return {
        node.targets[0].id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and _is_formatted(node.value)
    }


@pytest.mark.parametrize(
    "line",
    [
        'field.help_text = _("Type %(name)s.") % {"name": name}',
        'CharField(help_text=f"Type {name}.")',
        'CharField(label="Type {}".format(name))',
        'messages.info(request, f"{name} is erased.")',
        'def f():\n    text = _("%s") % name\n    messages.info(request, text)',
        'class Form:\n    description = f"{name}"',
    ],
)
def test_the_lint_finds_a_value_in_a_text(line):
    assert unescaped_sinks(line)


@pytest.mark.slow
def test_no_text_that_may_be_printed_as_html_contains_an_unescaped_value():
    folders = [Path(str(package.__file__)).parent for package in (chatmemory, project)]
    found = {
        str(path): lines
        for folder in folders
        for path in folder.rglob("*.py")
        if (lines := unescaped_sinks(path.read_text()))
    }
    assert found == {}


COLUMNS = {
    User: ("username", "first_name", "last_name"),
    Session: ("key", "title", "instructions", "running"),
    Message: ("text", "error", "model", "client_id"),
    Turn: ("client_id", "partial", "error", "model", "lease_owner"),
    SessionNote: ("text", "actor_label"),
    SessionTag: ("tag",),
    Feedback: ("turn", "reason"),
    AuditEntry: ("actor_label", "reason", "action"),
    Job: ("error", "actor_label", "cancelled_by", "reason", "lease_owner"),
    JobItem: ("key", "outcome"),
    DailyTurns: ("model", "error"),
}
"""The columns of texts that people, models and hosts choose."""


def _write_markup() -> None:
    """Put a tag at the start of each text that people, models and hosts choose."""
    for model, columns in COLUMNS.items():
        rows: Any = model._base_manager
        for column in columns:
            has_text = rows.exclude(**{column: ""}).filter(**{f"{column}__isnull": False})
            max_chars = getattr(model._meta.get_field(column), "max_length", None) or 1_000_000
            has_text.update(**{column: Left(Concat(Value(TAG), column), max_chars)})
    for message in Message._base_manager.filter(body__isnull=False):
        message.body = re.sub('"(find_order|sent|c1)', f'"{TAG}\\1', str(message.body))
        message.save(update_fields=["body"])
    for turn in Turn.objects.exclude(asked=""):
        turn.asked = turn.asked.replace('"content":"', f'"content":"{TAG}')
        turn.save(update_fields=["asked"])
    Session.objects.update(metadata={TAG: TAG})
    Job.objects.update(params={"tag": TAG, TAG: TAG}, skipped={TAG: 1})
    AuditEntry.objects.update(counts={TAG: 1, "tag": TAG})
    Maintenance.objects.update(counts={TAG: 1})


def _fields(page: str) -> dict[str, str]:
    """Return a value for each field of the forms of a page: a tag, or what the form has hidden."""
    names = dict.fromkeys(re.findall(r'<(?:input|textarea)[^>]* name="([^"]+)"', page), TAG)
    return {**names, **dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', page))}


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("mode", ["normal", "masked"])
def test_no_page_of_the_admin_contains_the_markup_of_a_value(client, settings, mode):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": mode}
    scene = make_scene()
    client.force_login(scene.root)
    _write_markup()
    seen = ""
    for page in all_pages() if mode == "normal" else MASKED:
        address = scene.address(page.path)
        text = client.get(address).content.decode()
        if page.is_audited:
            text += client.post(address, _fields(text), follow=True).content.decode()
        assert "<img/src" not in text, page.name
        seen += text
    assert seen.count("&lt;img/src") > 5


@pytest.mark.slow
@pytest.mark.django_db
def test_no_page_of_a_chat_contains_the_markup_of_a_value(client, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": ["export", "erase"]}
    scene = make_scene()
    client.force_login(scene.ann)
    _write_markup()
    Session.objects.filter(pk=scene.talk.pk).update(key="talk")
    for page in (*CHAT_PAGES, "talk/"):
        text = client.get(f"/chat/{page}").content.decode()
        assert "&lt;img/src" in text, page
        assert "<img/src" not in text, page
