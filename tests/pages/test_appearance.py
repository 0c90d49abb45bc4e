"""Colors, the switch of the color scheme, and what docs/howto/appearance.md states about them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from django.template.loader import render_to_string
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, expect

from tests.blocks import block_with
from tests.browsers import TIMEOUT_MS, open_account
from tests.pages.scenes import TALK, catalog_of, open_chat, session_page
from tests.pages.test_chat_js import FILES, row, running
from tests.pages.test_widget import check_access

DOCS = Path(__file__).resolve().parents[2] / "docs/howto"
PAGE = (DOCS / "appearance.md").read_text(encoding="utf-8")
REFERENCE = (DOCS.parent / "reference/customizing.md").read_text(encoding="utf-8")
TEMPLATES = FILES.parents[1] / "templates"
MAX_SCHEME_BYTES = 400
"""Of the script that blocks the page."""
MAX_PICTURE_BYTES = 100_000

STYLES = "\n".join(
    file.read_text(encoding="utf-8") for file in FILES.rglob("*.css") if file.parent.name != "admin"
)


def test_the_documented_properties_are_those_of_the_stylesheets():
    documented = re.findall(r"^\| `(--cm-[\w-]+)`", REFERENCE, re.MULTILINE)
    defined = re.findall(r"^  (--cm-[\w-]+):", STYLES, re.MULTILINE)
    used = set(re.findall(r"var\((--cm-[\w-]+)", STYLES))
    assert len(documented) == len(set(documented))
    assert set(documented) == used
    assert set(defined) == used - {"--cm-inset", "--cm-panel-inset", "--cm-layer"}


@pytest.mark.parametrize(
    ("page", "piece"),
    [
        ("docs/howto/appearance.md", "--cm-user-bubble"),
        ("docs/howto/widget.md", "--cm-panel-inset"),
    ],
)
def test_the_stylesheet_of_a_page_sets_properties_that_are_used(page, piece):
    css = block_with(page, piece).text
    names = re.findall(r"(--[\w-]+):", css)
    assert len(names) >= 5
    assert [name for name in names if f"var({name}" not in STYLES] == []
    assert css.count("{") == css.count("}")


def test_the_documented_blocks_are_those_of_the_template():
    source = (TEMPLATES / "chatmemory/base.html").read_text(encoding="utf-8")
    table = REFERENCE.partition("## Template blocks\n")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `([a-z_]+)` ", table, re.MULTILINE)
    assert set(documented) == set(re.findall(r"{% block (\w+)", source))


def test_each_picture_exists_and_is_small():
    pictures = re.findall(r"!\[[^\]]+\]\(([\w/.-]+\.png)\)", PAGE)
    assert len(pictures) == 4
    for name in pictures:
        assert 0 < (DOCS / name).stat().st_size <= MAX_PICTURE_BYTES


# Contrast (WCAG 2.2, 1.4.3)

TEXTS = {
    "text": ("ground", "shade", "raised", "user-bubble", "code"),
    "soft": ("ground", "shade", "raised", "code"),
    "accent": ("ground", "shade", "raised"),
    "on-accent": ("accent",),
    "bad": ("ground", "raised", "bad-ground", "code"),
    "warn-text": ("warn-ground",),
    "code-comment": ("code",),
    "code-keyword": ("code",),
    "code-name": ("code",),
    "code-number": ("code",),
    "code-string": ("code",),
}
"""The backgrounds of each color of text."""
COLORS: Mapping[str, tuple[str, str]] = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--cm-([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", STYLES)
}


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_each_text_has_contrast(scheme):
    assert COLORS.keys() - TEXTS.keys() - {one for on in TEXTS.values() for one in on} == {"line"}
    low = [
        (text, ground)
        for text, grounds in TEXTS.items()
        for ground in grounds
        if contrast(COLORS[text][scheme], COLORS[ground][scheme]) < 4.5
    ]
    assert low == []


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    channels = [value / 255 for value in bytes.fromhex(color[1:])]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "language"),
    [
        ("light", "en"),
        ("dark", "ar"),
        pytest.param("dark", "en", marks=pytest.mark.long),
        pytest.param("light", "ar", marks=pytest.mark.long),
    ],
)
def test_no_rule_of_axe_is_broken(tab, scheme, language):
    server = open_chat(tab, TALK, language=language)
    open_account(tab).get_by_label("Appearance").select_option(scheme)
    check_access(tab)
    tab.keyboard.press("Escape")
    check_access(tab)
    server.emit("message", **row(5, "Next", turn="t3", client_id="t3"))
    failed = {"role": "assistant", "status": "failed", "error": "model_timeout"}
    server.emit("message", **row(6, "So", turn="t3", **failed))
    server.session(last_seq=6, running=running("t4"), waiting=[{"turn": "w", "text": "Later"}])
    server.emit("synced", cursor="c2")
    expect(tab.get_by_text("Later")).to_be_visible()
    check_access(tab)
    server.emit("bye", code=4404, reason="test", reconnect=False, after_ms=None)
    server.sockets[-1].close(code=4404)
    expect(tab.locator(".cm-banner.cm-ended")).to_be_visible()
    check_access(tab)


# The switch


@pytest.fixture
def context(launch, chromium) -> Iterator[BrowserContext]:
    """Windows of a person whose system has the light scheme."""
    with launch(chromium).new_context(color_scheme="light") as context:
        context.set_default_timeout(TIMEOUT_MS)
        yield context


@pytest.fixture
def tab(context: BrowserContext) -> Iterator[Page]:
    """A tab that records errors and violations of the policy."""
    page = context.new_page()
    problems: list[str] = []

    def record(line: ConsoleMessage) -> None:
        if line.type == "error":
            problems.append(line.text)

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", record)
    yield page
    assert problems == []


SCHEME = "getComputedStyle(document.documentElement).colorScheme"
RECORD = f"""
globalThis.schemes = [];
const note = () => {{
    const root = document.documentElement;
    if (root && document.styleSheets.length) schemes.push({SCHEME});
    if (document.readyState !== "complete") requestAnimationFrame(note);
}};
requestAnimationFrame(note);
addEventListener("DOMContentLoaded", () => schemes.push({SCHEME}));
"""
"""Notes the scheme of each frame until the page is complete."""


@pytest.mark.browser
@pytest.mark.slow
def test_the_chosen_scheme_is_kept_and_applied_before_the_page_is_drawn(tab):
    tab.add_init_script(RECORD)
    open_chat(tab)
    assert tab.evaluate(SCHEME) == "light dark"
    switch = open_account(tab).get_by_label("Appearance")
    expect(switch).to_have_value("")
    switch.focus()
    switch.press("ArrowDown")
    switch.press("ArrowDown")
    expect(switch).to_have_value("dark")
    assert tab.evaluate(SCHEME) == "dark"
    tab.reload()
    expect(tab.locator("#cm-scheme")).to_have_value("dark")
    assert set(tab.evaluate("schemes")) == {"dark"}
    open_account(tab).get_by_label("Appearance").select_option("")
    assert tab.evaluate(SCHEME) == "light dark"


@pytest.mark.browser
@pytest.mark.slow
def test_all_tabs_follow_the_switch(context, tab):
    open_chat(tab)
    other = context.new_page()
    open_chat(other)
    open_account(other).get_by_label("Appearance").select_option("dark")
    expect(tab.locator("#cm-scheme")).to_have_value("dark")
    assert tab.evaluate(SCHEME) == "dark"


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.slow
def test_without_storage_the_choice_lasts_as_long_as_the_page(tab):
    tab.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no'); }})"
    )
    open_chat(tab)
    assert tab.evaluate(SCHEME) == "light dark"
    open_account(tab).get_by_label("Appearance").select_option("dark")
    assert tab.evaluate(SCHEME) == "dark"


@pytest.mark.browser
@pytest.mark.slow
def test_a_stylesheet_of_the_project_decides(tab):
    example = block_with("docs/howto/appearance.md", ":root { color-scheme: dark; }").text
    css = example + ":root { --cm-text: rgb(1, 2, 3); }"
    open_chat(tab, css=css)
    open_account(tab).get_by_label("Appearance").select_option("light")
    assert tab.evaluate(SCHEME) == "dark"
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(1, 2, 3)"


def test_the_scheme_is_applied_by_a_small_script_before_the_stylesheets():
    head = session_page().partition("</head>")[0]
    script = re.search(r'<script src="/static/(chatmemory/shared/scheme\.js)"></script>', head)
    assert script
    assert script.start() < head.index('rel="stylesheet"')
    assert (FILES.parent / script[1]).stat().st_size <= MAX_SCHEME_BYTES


def test_without_javascript_there_is_no_switch():
    assert re.search(r'<label class="cm-scheme"[^>]* hidden>', session_page())


# Templates and words of the project


@pytest.fixture
def project(tmp_path: Path, settings) -> Path:
    """The folder of a project with templates and a catalog of its own."""
    (tmp_path / "templates" / "chatmemory").mkdir(parents=True)
    options = {**settings.TEMPLATES[0], "DIRS": [tmp_path / "templates"]}
    settings.TEMPLATES = [options]
    settings.LOCALE_PATHS = [tmp_path / "locale"]
    return tmp_path


@pytest.mark.parametrize("template", ["session", "sessions", "problem", "removed", "options"])
def test_the_stylesheet_and_the_logo_of_a_project_are_on_each_page(project, template):
    folder = project / "templates" / "chatmemory"
    base = PAGE.partition("```html\n")[2].partition("```")[0]
    (folder / "base.html").write_text(base)
    (folder / "_logo.html").write_text("<b>My logo</b>")
    if template == "session":
        html = session_page()
    else:
        chat = {"key": "k", "title": "", "has_title": False}
        html = render_to_string(f"chatmemory/{template}.html", {"chat": chat})
    assert '<link rel="stylesheet" href="/static/my-chat.css">' in html
    assert html.index("my-chat.css") > html.rindex("chatmemory/element/chat.css")
    assert "<b>My logo</b>" in html


def test_a_project_can_omit_the_switch_of_the_scheme(project):
    base = block_with("docs/howto/appearance.md", "block scheme").text
    (project / "templates" / "chatmemory" / "base.html").write_text(base)
    assert 'class="cm-scheme"' not in session_page()


def write_catalog(path: Path, texts: Mapping[str, str]) -> None:
    """Write a compiled catalog, as `compilemessages` does."""
    pairs = sorted({"": "Content-Type: text/plain; charset=UTF-8\n", **texts}.items())
    encoded = [text.encode() for column in zip(*pairs, strict=True) for text in column]
    start = 28 + 8 * len(encoded)
    table, content = b"", b""
    for text in encoded:
        table += struct.pack("<II", len(text), start + len(content))
        content += text + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 4 * len(encoded), 0, start)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + table + content)


def test_a_catalog_of_the_project_changes_words_of_any_language(project):
    text = block_with("docs/howto/appearance.md", 'msgstr "Robin"').text
    example = dict(re.findall(r'^msgid "(.+)"\nmsgstr "(.+)"$', text, re.MULTILINE))
    for domain in ("django", "djangojs"):
        path = project / "locale" / "en" / "LC_MESSAGES" / f"{domain}.mo"
        write_catalog(path, {"New chat": "Ask Robin", "Send": "Ask", **example})
    html = session_page()
    assert "Ask Robin" in html
    assert "/chat/~words/en.js?" in html
    assert '"Send": "Ask"' in catalog_of("en")
    assert '"Assistant": "Robin"' in catalog_of("en")
