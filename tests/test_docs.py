"""The documentation matches the code."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import global_settings
from django.core.management import get_commands, load_command_class
from django.db import models

from chatmemory.conf import Settings
from chatmemory.consumers.lifecycle import FINAL_CODES
from chatmemory.formats.columns import SESSION
from chatmemory.models import installed_models
from chatmemory.templatetags.chatmemory import register
from tests import frames
from tests.blocks import pages_in_docs
from tests.programs.speed.databases import OWN_PREFIX

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "chatmemory"
IMPORT = re.compile(r"^from (chatmemory[\w.]*) import ([\w, ]+)", re.MULTILINE)
PAGES = sorted([*ROOT.glob("*.md"), *pages_in_docs()])


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("audit", "howto/audit.md"),
        ("checks", "reference/checks.md"),
        ("commands", "reference/commands.md"),
        ("customizing", "reference/customizing.md"),
        ("errors", "reference/errors.md"),
        ("frames", "reference/frames.md"),
        ("hooks", "reference/signals-and-hooks.md"),
        ("permissions", "reference/permissions.md"),
        ("services", "reference/services.md"),
        ("settings", "reference/settings.md"),
    ],
)
def test_generated_pages_are_current(name, file):
    generator = runpy.run_path(str(ROOT / f"docs/generate/{name}_page.py"))
    assert (ROOT / "docs" / file).read_text() == generator["page"](), "run `make docs`"


@pytest.mark.slow
def test_the_json_schema_is_current():
    generator = runpy.run_path(str(ROOT / "docs/generate/frames_page.py"))
    schema = (ROOT / "chatmemory/protocol.schema.json").read_text()
    assert schema == generator["schema"](), "run `make docs`"


@pytest.mark.parametrize("name", ["layers", "turn"])
def test_generated_diagrams_are_current(name):
    generator = runpy.run_path(str(ROOT / "docs/generate/diagrams.py"))
    assert (ROOT / f"docs/images/{name}.svg").read_text() == generator[name](), "run `make docs`"


SOURCE = "".join(path.read_text() for path in sorted(APP.rglob("*.py")))
FOREIGN_NAMES = {
    "CONN_MAX_AGE",
    "OPTIONS",
    "CHATMEMORY",  # the setting of Django that contains ours
    "CHATMEMORY_PASSWORD",
    "AUTOCOMMIT",  # of DATABASES
    "DATABASE_URL",
    "DEFAULT_AUTHENTICATION_CLASSES",  # of REST framework
    "DISABLE_SERVER_SIDE_CURSORS",  # of DATABASES
    "LANGCHAIN_TRACING_V2",
    "LANGSMITH_TRACING",
    "O_APPEND",
    "PEERS_MARIADB",
    "PEERS_POSTGRESQL",
    "PEERS_REDIS",
    "REDIS_URL",
    "TORTURE_MARIADB",
    "TORTURE_POSTGRESQL",
}
"""Names in capitals that are neither settings nor constants of this repository."""
CONSTANTS = {
    name
    for folder in ("chatmemory", "docs", "project", "tests")
    for path in (ROOT / folder).rglob("*.py")
    for name in re.findall(r"^([A-Z][A-Z_0-9]+)(?=:| =)", path.read_text(), re.MULTILINE)
}
each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
each_current_page = pytest.mark.parametrize(
    "path",
    [path for path in PAGES if path.name != "CHANGELOG.md"],  # which also has former names
    ids=lambda path: str(path.relative_to(ROOT)),
)


def without_blocks(text, language=""):
    """The text without its code blocks of a language, by default of all."""
    return re.sub(rf"^(`{{3,}}){language}.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(path):
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@each_page
def test_links_within_the_documentation_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", path.read_text())
    wrong = []
    for file, anchor in links:
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            wrong.append(f"{file}#{anchor}")
    assert wrong == []


def test_each_picture_is_on_a_page_and_small():
    shown = {
        name for page in PAGES for name in re.findall(r"!\[[^\]]+\]\((.+?)\)", page.read_text())
    }
    pictures = [path for path in (ROOT / "docs").rglob("*.png") if "node_modules" not in path.parts]
    assert {picture.name for picture in pictures} <= {Path(name).name for name in shown}
    assert all(0 < picture.stat().st_size <= 100_000 for picture in pictures)


@each_page
def test_the_files_that_a_page_names_exist(path):
    text = without_blocks(path.read_text())
    named = re.findall(r"`((?:chatmemory|docs|project|templates|tests|\.ci)/[\w./-]+)`", text)
    assert len(named) > 20 or path.name != "CONTRIBUTING.md"
    assert [name for name in named if not (ROOT / name).exists()] == []


def resolves(name):
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if find_module(".".join(parts[:count])):
            found = import_module(".".join(parts[:count]))
            for part in parts[count:]:
                found = getattr(found, part, None)
            return found is not None
    return False


def find_module(name):
    try:
        return find_spec(name)
    except ModuleNotFoundError:  # a parent is not a package
        return None


@each_current_page
def test_the_dotted_names_of_a_page_exist(path):
    names = set(re.findall(r"\bchatmemory(?:\.\w+)+", path.read_text()))
    known = {"chatmemory.v1", "chatmemory.v2"}  # the protocol, and its next version
    known |= {name for name in names if f'getLogger("{name}")' in SOURCE or f'"{name}"' in SOURCE}
    assert [name for name in sorted(names - known) if not resolves(name)] == []


@each_current_page
def test_the_commands_of_a_page_have_the_options_that_it_uses(path):
    known = {*register.tags, OWN_PREFIX, *(config.label for config in apps.get_app_configs())}
    known |= {model._meta.db_table for model in installed_models()}
    wrong = []
    text = without_blocks(path.read_text(), "sql").replace("\\\n", "")
    for name, rest in re.findall(r"\b(chatmemory_[a-z_]+)([^`\n]*)", text):
        if name not in get_commands():
            wrong += [name] * (name not in known)
            continue
        parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
        options = re.findall(r"(?<!\w)--[a-z-]+", rest)
        wrong += [
            f"{name} {option}" for option in options if option not in str(parser.format_help())
        ]
    assert wrong == []


@each_page
def test_the_targets_of_make_that_a_page_names_exist(path):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"(?:`|^)make\s+([a-z-]+)", path.read_text(), re.MULTILINE)
    assert set(named) - set(targets) == set()


@each_current_page
def test_the_settings_that_a_page_names_exist(path):
    names = set(re.findall(r"`([A-Z][A-Z_0-9]{3,})`", path.read_text()))
    settings = {*dir(Settings), *dir(global_settings)}
    assert names - settings - CONSTANTS - FOREIGN_NAMES == set()


def test_the_layout_of_the_design_has_the_layers_of_the_import_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = next(
        one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers"
    )
    layers = [set(layer.split(" | ")) for layer in contract["layers"]]
    table = (ROOT / "docs/reasons/design.md").read_text().partition("## Layout\n")[2]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    named = [re.findall(r"`(\w+)(/?)`", row) for row in rows]
    assert [{name for name, _ in row} for row in named] == layers
    packages = {name for row in named for name, slash in row if slash}
    assert packages == {name for row in layers for name in row if (APP / name).is_dir()}


def fields_of(cell):
    """The names in a cell such as `**id**, text or content (blocks), running {turn} or null`."""
    bare = re.sub(r"\([^)]*\)|\{[^}]*\}|\[+[^]]*\]+|\bor null\b", "", cell)
    names = re.split(r"[,;]| or ", bare)
    return {name.strip(" *") for name in names} - {""}, set(re.findall(r"\*\*(\w+)\*\*", bare))


def documented(side):
    """The fields of each frame, and the bold ones, as the tables of the protocol's page say."""
    table = (ROOT / "docs/reference/protocol.md").read_text().partition(f"## From the {side}\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table.partition("\n## ")[0], re.MULTILINE)
    return {kind: fields_of(cell) for kind, cell in rows}


@pytest.mark.parametrize("side", ["client", "server"])
def test_the_tables_of_the_protocol_have_the_fields_of_the_schema(side):
    shown = documented(side)
    assert list(shown) == frames.kinds(side)
    for kind, (names, bold) in shown.items():
        schema = frames.SCHEMA["$defs"][kind]
        assert names == {*schema["properties"]} - {"type"}
        required = [
            name for choice in [schema, *schema.get("oneOf", ())] for name in choice["required"]
        ]
        assert bold == ({*required} - {"type"} if side == "client" else set())


@pytest.mark.parametrize(
    ("page", "start"),
    [
        ("erasure", "deletes all of the person's conversations permanently:"),
        ("transfer", "- titles, "),
    ],
)
def test_the_lists_of_exported_and_erased_data_name_each_column_with_text(page, start):
    text = (ROOT / f"docs/howto/{page}.md").read_text()
    named = text[text.index(start) :].partition(".")[0]
    kinds = (models.CharField, models.TextField, models.JSONField)
    texts = [column.name for column in SESSION.columns if isinstance(column.field, kinds)]
    columns = [name for name in texts if name not in NAMES_OF_SESSIONS]
    assert [name for name in columns if name not in named] == []
    assert "title" in columns


NAMES_OF_SESSIONS = {"scope", "removed_scope", "key", "running"}
"""The address of a session, and the ID of its turn."""


def test_the_table_of_the_api_has_the_fields_of_each_request():
    requests = dict(runpy.run_path(str(ROOT / "docs/generate/frames_page.py"))["requests"]())
    for request, shape in requests.items():
        fields = "|".join([rf"`{request}`", rf"`{request}\?(.*?)`", rf"`{request}` `{{(.*?)}}`"])
        rows = re.findall(
            rf"^\| (?:{fields}) \|", (ROOT / "docs/reference/api.md").read_text(), re.MULTILINE
        )
        assert [{*re.findall(r"\w+", "".join(row))} for row in rows] == [shape.names], request


def test_the_schema_knows_each_code_of_a_close():
    closes = (ROOT / "docs/reference/protocol-limits.md").read_text().partition("In a `bye`")[2]
    known = frames.SCHEMA["$defs"]["bye"]["properties"]["code"]["enum"]
    rows = re.findall(r"^\| (\d{4}) \|.*\| (yes|no)\b", closes, re.MULTILINE)
    assert [int(code) for code, _ in rows] == known
    assert {int(code) for code, reconnects in rows if reconnects == "no"} == FINAL_CODES


@pytest.mark.parametrize(
    ("module", "name"),
    sorted(
        {
            (module, name.strip())
            for page in [ROOT / "README.md", *pages_in_docs()]
            for module, names in IMPORT.findall(page.read_text())
            for name in names.split(",")
        }
    ),
)
def test_what_the_pages_import_exists(module, name):
    found = import_module(module)
    assert hasattr(found, name) or find_spec(f"{module}.{name}")


def test_the_checks_that_the_page_for_hosts_names_exist():
    named = set(re.findall(r"`chatmemory\.([EW]\d{3})`", (ROOT / "docs/howto/host.md").read_text()))
    code = "".join(path.read_text() for path in APP.rglob("*.py"))
    assert named <= set(re.findall(r'id="chatmemory\.([EW]\d{3})"', code))


def test_each_check_has_an_id_of_its_own():
    places = defaultdict(set)
    for path in APP.rglob("*.py"):
        for found in re.findall(r'id="chatmemory\.([EW]\d{3})"', path.read_text()):
            places[found].add(path)
    assert {found: files for found, files in places.items() if len(files) > 1} == {}
