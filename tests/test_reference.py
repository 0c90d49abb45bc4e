"""The pages of the reference are complete: what is added to the code is described there."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission
from django.core.management import BaseCommand, get_commands, load_command_class

from chatmemory import errors, signals
from chatmemory.conf import Settings
from chatmemory.errors import ChatMemoryError, ModelError
from tests import frames

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "chatmemory"
REFERENCE = ROOT / "docs/reference"
STATIC = APP / "static/chatmemory"


def generator(name):
    return runpy.run_path(str(ROOT / f"docs/generate/{name}_page.py"))


def sections(name, level):
    """The sections of a page by the code in their headings, such as "### `busy`"."""
    text = (REFERENCE / name).read_text()
    parts = re.split(rf"^{level} `([^`]+)`\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_check_has_a_section_with_a_message_and_what_to_do():
    code = "".join(path.read_text() for path in APP.rglob("*.py"))
    found = sections("checks.md", "###")
    assert set(found) == set(re.findall(r"[\"'](chatmemory\.[EW]\d{3})[\"']", code))
    for name, text in found.items():
        messages = re.findall(r"^- (.+)$", text, re.MULTILINE)
        [remedy] = re.findall(r"^\*\*What to do:\*\* (.+)$", text, re.MULTILINE)
        for sentence in (*messages, remedy):
            assert re.search(r"[a-z]{3}", sentence), (name, sentence)
        assert messages, name


def test_what_the_generator_adds_to_the_checks_is_needed():
    module = generator("checks")
    found = {finding.id: finding for finding in module["findings"]()}
    assert set(module["REMEDIES"]) <= set(found)
    assert set(module["MESSAGES"]) <= set(found)


def test_each_check_of_the_deployment_states_its_option():
    deploying = {
        name for name, text in sections("checks.md", "###").items() if "Only with `--dep" in text
    }
    assert {"chatmemory.W007", "chatmemory.W014", "chatmemory.E012"} <= deploying
    assert not deploying & {"chatmemory.E001", "chatmemory.W031"}


def test_a_check_without_a_hint_needs_a_remedy(monkeypatch):
    module = generator("checks")
    [finding] = [one for one in module["findings"]() if one.id == "chatmemory.E009"]
    monkeypatch.delitem(module["REMEDIES"], "chatmemory.E009")
    with pytest.raises(LookupError, match=r"chatmemory\.E009 needs a hint"):
        module["_remedy"]("chatmemory.E009", [finding])


def classes_of_errors(root=ChatMemoryError):
    if root.__module__ == errors.__name__:
        yield root
        for kind in root.__subclasses__():
            yield from classes_of_errors(kind)


def test_each_error_has_a_section_with_its_class_and_what_to_do():
    found = sections("errors.md", "###")
    kinds = {kind.code: kind for kind in classes_of_errors() if kind is not errors.BadInput}
    assert set(found) == set(kinds)
    for code, kind in kinds.items():
        assert f"> {kind()}" in found[code]
        assert f"`{kind.__name__}`." in found[code]
        assert "**What to do:** " in found[code]
        assert ("REST" in found[code]) is not issubclass(kind, ModelError)


def test_each_code_of_a_frame_is_on_the_page_of_the_errors():
    text = (REFERENCE / "errors.md").read_text()
    table = set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE))
    codes = frames.SCHEMA["$defs"]["error"]["properties"]["code"]["enum"]
    assert set(codes) == table | {
        kind.code
        for kind in classes_of_errors()
        if not issubclass(kind, ModelError | errors.BadInput)
    }


COMMANDS = {name: app for name, app in get_commands().items() if app.startswith("chatmemory")}


def test_each_command_has_a_section():
    assert set(sections("commands.md", "##")) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_option_of_a_command_is_in_its_section(name):
    section = sections("commands.md", "##")[name]
    parser = load_command_class(COMMANDS[name], name).create_parser("manage.py", name)
    plain = BaseCommand().create_parser("manage.py", name)
    usual = {text for action in plain._actions for text in action.option_strings}
    for action in parser._actions:
        for option in {*action.option_strings} - usual - {"--json", "--progress", "--no-progress"}:
            assert re.search(rf"^\| (\*\*)?`{option}\b", section, re.MULTILINE), option
        if action.required:
            assert f"| **`{(action.option_strings or [action.dest])[0]}" in section


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_key_of_the_json_of_a_command_is_in_its_section(name):
    [path] = APP.rglob(f"management/commands/{name}.py")
    reported = {
        keyword.arg
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "self.report"
        for keyword in call.keywords
        if keyword.arg
    }
    section = sections("commands.md", "##")[name]
    assert [key for key in sorted(reported) if f"`{key}`" not in section] == []


@pytest.mark.django_db
def test_each_permission_has_a_row():
    text = (REFERENCE / "permissions.md").read_text()
    table = text.partition("## Permissions\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| .+ \| \S.+ \|", table, re.MULTILINE)
    known = Permission.objects.filter(content_type__app_label__startswith="chatmemory")
    labels = known.values_list("content_type__app_label", "codename")
    assert set(rows) == {
        f"{app}.{codename}".removeprefix("chatmemory.") for app, codename in labels
    }


def test_each_setting_that_names_code_of_the_host_is_described():
    module = generator("hooks")
    assert set(module["HOOKS"]) == module["settings_of_host"]()
    assert {"GATE", "RESPONDER", "EMBEDS"} <= module["settings_of_host"]() <= {*dir(Settings)}


def test_each_signal_has_a_row():
    text = (REFERENCE / "signals-and-hooks.md").read_text().partition("## Signals\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| \S", text, re.MULTILINE)
    known = {name for name, value in vars(signals).items() if isinstance(value, signals.Signal)}
    assert set(rows) == known


@pytest.mark.parametrize("name", ["PROPERTIES", "BLOCKS", "ATTRIBUTES", "EVENTS", "CLIENT_EVENTS"])
def test_a_name_without_a_description_is_refused(name, monkeypatch):
    module = generator("customizing")
    monkeypatch.delitem(module[name], next(iter(module[name])))
    with pytest.raises(LookupError, match="without a description"):
        module["page"]()


def test_each_public_method_of_the_element_has_a_row():
    script = (STATIC / "element/chat.js").read_text(encoding="utf-8")
    body = script.partition("class ChatMemory extends")[2].partition("\n}")[0]
    methods = set(re.findall(r"^  (?:get )?([a-z]\w+)\(", body, re.MULTILINE))
    of_browsers = {"connectedCallback", "disconnectedCallback", "attributeChangedCallback"}
    rows = (REFERENCE / "customizing.md").read_text().partition("### Methods and properties")[2]
    named = re.findall(r"^\| `(\w+)", rows.partition("\n## ")[0], re.MULTILINE)
    assert set(named) == methods - of_browsers


@pytest.mark.parametrize("name", ["checks", "errors", "signals-and-hooks"])
def test_each_setting_that_a_page_names_is_a_link(name):
    text = re.sub(r"```.*?```", "", (REFERENCE / f"{name}.md").read_text(), flags=re.DOTALL)
    assert "](settings.md#" in text
    linked = re.findall(r"\]\(settings\.md#(\w+)\)", text)
    assert {word.upper() for word in linked} <= {*dir(Settings)}
    plain = re.sub(r"^>.*$|\[[^]]*\]\([^)]*\)|`[^`]*`", "", text, flags=re.MULTILINE)
    names = {setting for setting in vars(Settings) if setting.isupper()}
    assert names & {*re.findall(r"\b[A-Z][A-Z_]{3,}\b", plain)} == set()
