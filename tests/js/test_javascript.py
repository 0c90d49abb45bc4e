"""The JavaScript tests, and the values that JavaScript and Python share."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import ManifestStaticFilesStorage
from django.core.management import call_command
from django.test import override_settings

import chatmemory
from chatmemory import codec, protocol
from chatmemory.client import chat as client
from chatmemory.consumers import lifecycle
from chatmemory.errors import BadInput
from chatmemory.pages import steps, views
from chatmemory.rendering import json as json_text
from chatmemory.rendering import text
from chatmemory.services.turns import versions
from tests import frames
from tests.conftest import missing
from tests.js.declared import STATIC, fields_of

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs/howto"
SCHEMA = Path(chatmemory.__file__).parent / "protocol.schema.json"

COMPARE = """
const {file, functions, samples} = JSON.parse(await new Response(process.stdin).text());
const found = await import(file);
const results = functions.map((name) => samples.map((sample) => found[name](sample)));
process.stdout.write(JSON.stringify(results));
"""


@pytest.mark.slow
def test_the_javascript_tests_pass(node):
    if not (HERE / "node_modules").is_dir():
        pytest.skip("the packages of tests/js are not installed: make js installs them")
    npm = shutil.which("npm") or missing("npm is not installed")
    result = subprocess.run(  # noqa: S603  # no input
        [npm, "test"], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    passed = re.search(r"^\W*pass (\d+)", result.stdout, re.MULTILINE)
    assert passed, result.stdout
    assert int(passed[1]) > 0


SINK = re.compile(
    r"(inner|outer)HTML\s*\+?=[^=]|insertAdjacentHTML|setHTMLUnsafe|parseFromString"
    r"|createContextualFragment|document\.write|srcdoc|\beval\(|new Function|new Worker"
    r"|\.src\s*=[^=]|setAttribute\(\"(on|src)"
)
"""Code that a page refuses that requires Trusted Types, unless a policy made the text."""


@pytest.mark.regression
def test_only_one_script_parses_html():
    scripts = [path for path in STATIC.rglob("*.js") if SINK.search(path.read_text("utf-8"))]
    assert [path.name for path in scripts] == ["html.js"]


class Hashed(ManifestStaticFilesStorage):
    """As docs/howto/deployment.md recommends."""

    support_js_module_import_aggregation = True
    max_post_process_passes = 20


@pytest.mark.slow
def test_a_storage_can_put_hashes_into_the_imports_of_the_scripts(tmp_path):
    storage = Hashed(location=tmp_path)
    shutil.copytree(STATIC, tmp_path / "chatmemory")
    names = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*s")]
    found = list(storage.post_process({name: (storage, name) for name in names}))
    assert [entry for entry in found if isinstance(entry[2], Exception)] == []  # too few passes
    chat = (tmp_path / storage.stored_name("chatmemory/element/chat.js")).read_text()
    assert re.search(r'import\("\.\./widget/widget\.\w{12}\.js"\)', chat)


def constants() -> dict[str, Any]:
    """Return the numbers and lists of numbers in constants.js, by name."""
    script = (STATIC / "shared/constants.js").read_text(encoding="utf-8")
    found = re.findall(r"^export const (\w+) = ([\d_]+|\[[\d, ]+\]);", script, re.MULTILINE)
    return {name: json.loads(value.replace("_", "")) for name, value in found}


def test_javascript_has_the_limits_and_close_codes_of_python():
    assert constants() == {
        "PROTOCOL_VERSION": protocol.VERSION,
        "SILENCE_SECONDS": client.SILENCE_SECONDS,
        "MAX_FETCH": protocol.MAX_FETCH,
        "MAX_REPLACED": versions.MAX_REPLACED_ROWS,
        "MAX_SHOWN_CHARS": steps.MAX_TEXT_CHARS,
        "MAX_RENDERED": views.RENDERED_ROWS,
        "FATAL_CLOSES": sorted(client.FATAL_CLOSES),
        "CLOSE_UNAUTHENTICATED": lifecycle.CLOSE_CODES["unauthenticated"],
        "CLOSE_NOT_FOUND": lifecycle.CLOSE_CODES["not_found"],
        "CLOSE_TOO_MANY_CONNECTIONS": lifecycle.CLOSE_CODES["too_many_connections"],
        "CLOSE_RATE_LIMITED": lifecycle.CLOSE_CODES["rate_limited"],
        "CLOSE_TOO_LARGE": 1009,  # RFC 6455, 7.4.1
    }


DEFINITIONS = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]
FRAMES = [
    entry["$ref"].removeprefix("#/$defs/")
    for side in ("from_client", "from_server")
    for entry in DEFINITIONS[side]["oneOf"]
]


@pytest.mark.parametrize("name", FRAMES)
def test_the_type_of_a_frame_has_the_fields_of_the_schema(name):
    schema = DEFINITIONS[name]
    required = {field: field in schema["required"] for field in schema["properties"]}
    assert fields_of(f"{name.capitalize()}Frame") == required


@pytest.mark.parametrize("side", ["client", "server"])
def test_the_union_of_a_sides_frames_has_each(side):
    script = (STATIC / "client/types.d.ts").read_text(encoding="utf-8")
    union = re.search(rf"^export type {side.capitalize()}Frame =([^;]+);", script, re.MULTILINE)
    assert union, side
    assert {name.lower() for name in re.findall(r"(\w+)Frame", union[1])} == {*frames.kinds(side)}


def test_the_options_of_the_client_are_those_of_its_constructor_and_its_page():
    script = (STATIC / "client/chatmemory-client.js").read_text(encoding="utf-8")
    accepted = re.search(r"constructor\(\s*url,\s*{(.*?)} = {},", script, re.DOTALL)
    page = (DOCS / "client-js.md").read_text(encoding="utf-8")
    documented = page.partition("| option of `new ChatMemoryClient")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| ([^|]+) \|", documented, re.MULTILINE)
    assert accepted
    options = list(fields_of("ClientOptions"))
    assert re.findall(r"(\w+) = ", accepted[1]) == options
    assert re.findall(r"`(\w+)`", " ".join(cells)) == options


def compare(
    node: str, functions: list[str], samples: list[str], *, file: str = "text"
) -> list[list[Any]]:
    """Return the results of functions of a file in element/ for these texts."""
    command = [
        *(node, "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON"),
        *("--input-type=module", "--eval", COMPARE),
    ]
    given = json.dumps(
        {
            "file": (STATIC / f"element/{file}.js").as_uri(),
            "functions": functions,
            "samples": samples,
        }
    )
    result = subprocess.run(  # noqa: S603  # the command is constant
        command, cwd=STATIC, input=given, capture_output=True, text=True, check=True
    )
    found: list[list[Any]] = json.loads(result.stdout)
    return found


@pytest.mark.slow
def test_each_character_is_hidden_marked_and_blank_in_both_languages(node):
    # A code point that one version of Unicode does not assign may be assigned in another version.
    chars = [
        char
        for char in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(char) not in ("Cn", "Cs")
    ]
    marked, markup, blank = compare(node, ["visible", "hasMarkup", "isBlank"], chars)
    assert marked == list(map(text.visible, chars))
    assert markup == list(map(text.has_markup, chars))
    refusals = zip(chars, blank, map(refusal_of, chars), strict=True)
    assert [
        char
        for char, is_blank, code in refusals
        if (code == "empty") != is_blank and code != "bad_text"
    ] == []


def refusal_of(text: str) -> str:
    """Return the code with which the server refuses this text; empty if it accepts it."""
    try:
        codec.check_text(text)
    except BadInput as error:
        return error.code
    return ""


@pytest.mark.slow
def test_first_words_and_markup_are_equal_in_both_languages(node):
    texts = [
        *(
            "",
            "  two\n words ",
            "x" * 70,
            "word " * 30,
            "*a*",
            " - item",
            "1) item",
            "1.5",
            "a - b",
            "costs $5",
            "see www.a.example",
        ),
        "\u202e\u202eab\U000e0041",
    ]
    first, marked, markup = compare(node, ["firstWords", "visible", "hasMarkup"], texts)
    assert first == list(map(text.first_words, texts))
    assert marked == list(map(text.visible, texts))
    assert markup == list(map(text.has_markup, texts))


ENTRIES = [
    *(
        "admin/admin",
        "admin/drafts",
        "admin/trim",
        "admin/job",
        "element/chat",
        "list/chats",
        "list/times",
    ),
    *("shared/scheme", "shared/account", "shared/sign-out"),
]
"""The modules that no other one imports."""
OTHERS = ["css", "img", "js", "rest_framework", "drf_spectacular_sidecar"]
"""The folders of other apps, which have most of the files; the first three are of the admin."""
STORAGE = "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"


@pytest.mark.slow
@pytest.mark.parametrize("storage", [STORAGE, "tests.js.storages.HashedModulesStorage"])
def test_each_module_is_found_where_a_hashed_storage_collects_it(tmp_path, storage):
    storages = {"staticfiles": {"BACKEND": storage}}
    with override_settings(STORAGES=storages, STATIC_ROOT=str(tmp_path), STATIC_URL="/static/"):
        call_command("collectstatic", interactive=False, verbosity=0, ignore_patterns=OTHERS)
    folder = tmp_path / "chatmemory"
    entries = [path for name in ENTRIES for path in folder.glob(f"{name}.????????????.js")]
    assert len(entries) == len(ENTRIES)
    loaded = {path for entry in entries for path in modules_of(entry)}
    # Without the hashes: an entry can also be imported, then by its own name.
    modules = {re.sub(r"\.[0-9a-f]{12}(?=\.js$)", "", str(path)) for path in loaded}
    assert len(modules) == len(list(STATIC.rglob("*.js")))
    hashed = {path for path in loaded if re.search(r"\.[0-9a-f]{12}\.js$", path.name)}
    assert hashed == (loaded if storage != STORAGE else {entry.resolve() for entry in entries})


def test_the_page_does_not_load_the_rest_client():
    names = {path.name for path in modules_of(STATIC / "element/chat.js", later=False)}
    assert "chatmemory-client.js" in names
    assert not {"chatmemory-rest.js", "rest.js"} & names


def modules_of(entry: Path, *, later: bool = True) -> set[Path]:
    """Return a module and all modules that it imports, also those that it imports later."""
    found: set[Path] = set()
    pending = [entry]
    while pending:
        path = pending.pop().resolve()
        if path in found:
            continue
        found.add(path)
        script = path.read_text(encoding="utf-8")
        names = re.findall(r'^(?:import|\}).* from "([^"]+)";', script, re.MULTILINE)
        if later:
            code = re.sub(r"/\*\*.*?\*/", "", script, flags=re.DOTALL)  # without the types
            names += re.findall(r'\bimport\("([^"]+)"\)', code)
        pending += [path.parent / name for name in names]
    return found


def test_the_finders_find_the_public_modules():
    page = (DOCS / "client-js.md").read_text(encoding="utf-8").partition("## The modules")[2]
    cells = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    names = re.findall(r"`([\w/-]+\.js)`", " ".join(cells))
    assert {"element/chat.js", "client/chatmemory-rest.js"} <= set(names)
    for name in names:
        assert finders.find(f"chatmemory/{name}"), name


LOWER = {
    "shared": set(),
    "client": {"shared"},
    "element": {"client", "shared"},
    "widget": {"element", "client", "shared"},
    "list": {"shared"},
    "admin": {"shared"},
}
"""The folders, each with those from which its modules import."""


def test_a_module_imports_only_from_lower_folders():
    assert {path.relative_to(STATIC).parts[0] for path in STATIC.rglob("*.*")} == set(LOWER)
    found = {
        (path.relative_to(STATIC).parts[0], other.relative_to(STATIC).parts[0])
        for path in STATIC.rglob("*.js")
        for other in modules_of(path, later=False)
    }
    upwards = {(own, other) for own, other in found if other not in LOWER[own] | {own}}
    assert upwards == set()


@pytest.mark.slow
def test_json_is_indented_equally_in_both_languages(node):
    samples = [
        '{"a": [1, {}, [ ]], "b": {"c": "x: {y, \\"z\\"]"}, "d": null}',
        "[1.50,\n-2e10,\t12345678901234567890]",
        '{"cut": "in the mid',
        '{"cut": "at a \\',
        "]} , : [[",
        "{}",
        "",
    ]
    [indented] = compare(node, ["indented"], samples, file="json")
    assert indented == list(map(json_text.indented, samples))
