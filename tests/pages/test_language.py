"""The pages and the element in other languages than English."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client
from django.urls import include, path
from django.utils import translation
from django.utils.dates import MONTHS
from playwright.sync_api import Page, expect

from chatmemory import services
from chatmemory.pages.base import PROBLEMS
from chatmemory.pages.listing import ChatList, Group
from chatmemory.pages.steps import ResultEntry, RowSteps, StepEntry
from chatmemory.pages.views import FAILURES, MessageEntry, failure_text
from chatmemory.rendering.markdown import markdown
from chatmemory.services import Actor
from tests.admin.test_translations import Texts
from tests.browsers import Chat
from tests.catalogs import DOMAINS, WORD, read_catalog
from tests.factories import make_messages, make_session, make_user
from tests.pages.scenes import AT, listed, open_chat, serve_chat, session_page
from tests.pages.test_chat_js import FILES, PAGE, SITE, ScriptedServer, page, row

__all__ = ["page"]

urlpatterns = i18n_patterns(path("chat/", include("chatmemory.urls")))


def test_the_page_loads_the_catalog_of_its_language_before_its_script():
    assert "~words/" not in session_page()
    with translation.override("de"):
        html = session_page()
    assert html.index('<script src="/chat/~words/de.js?') < html.index(
        'chatmemory/element/chat.js"></script>'
    )


def test_the_catalog_can_be_cached_and_needs_no_login():
    response = Client().get("/chat/~words/de.js")
    assert '"Send": "Senden"' in response.content.decode()
    assert response["Content-Type"] == 'text/javascript; charset="utf-8"'
    assert response["Cache-Control"] == "public, max-age=86400"
    assert not response.has_header("Vary")
    assert not response.cookies


@pytest.mark.parametrize("language", ["xx", "de%0A", "..%2fde", "x" * 300])
def test_an_unknown_language_has_no_catalog(language):
    assert Client().get(f"/chat/~words/{language}.js").status_code == 404


@pytest.mark.urls(__name__)
def test_the_address_of_the_catalog_decides_its_language(settings):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    response = Client().get("/fr/chat/~words/de.js", headers={"accept-language": "ar"})
    assert '"Send": "Senden"' in response.content.decode()
    assert response["Content-Language"] == "de"
    assert not response.has_header("Vary")


def test_a_host_can_switch_translations_off(settings, monkeypatch):
    settings.USE_I18N = False
    # Django selects its functions by this setting at their first call, for the whole process.
    monkeypatch.setattr(translation, "_trans", type(translation._trans)())
    settings.LANGUAGE_CODE = "de"
    assert "~words/" not in session_page()


DATA = "anna Hallo Welt suche gpt ja nein demo"
"""Words of users, models and programs in the pages here."""
ON_THE_PAGE = """() => {
    const nodes = [...document.querySelectorAll("body :not(time)")];
    const texts = nodes.filter((node) => node.checkVisibility()).flatMap((node) => [
        ...[...node.childNodes].filter((child) => child.nodeType === 3).map((child) => child.data),
        ...["title", "aria-label", "placeholder"].map((name) => node.getAttribute(name) ?? ""),
    ]);
    return [document.title, ...texts].join("\\n");
}"""


@pytest.fixture
def german(page: Page) -> ScriptedServer:
    """The page of a chat in German, whose words a script changes."""
    with translation.override("de"):
        html = session_page(
            user=User(username="anna", is_staff=True),
            title="",
            current=None,
            list=ChatList(groups=[Group(id="x", name="", chats=[listed("k1", "")])], next=None),
            suggestions=["Hallo Welt"],
        )
    # A machine without a network is offline for the browser, though the server is on it.
    page.add_init_script("Object.defineProperty(navigator, 'onLine', {value: true})")
    script = 'import {words} from "/static/chatmemory/element/chat-words.js";'
    script += 'words.newer = "Hallo";'
    return serve_chat(page, html, language="de", script=script)


@pytest.fixture(scope="module")
def vocabulary() -> set[str]:
    """Return the words of all German texts, with those of the data."""
    texts = [
        text for domain in DOMAINS for entry in read_catalog(domain) for text in entry.translations
    ]
    with translation.override("de"):
        djangos = [*map(str, MONTHS.values()), translation.gettext("Username")]
    return set(WORD.findall(" ".join([*texts, *djangos, DATA])))


@pytest.mark.browser
@pytest.mark.slow
def test_no_word_of_the_page_is_english_in_german(german, vocabulary):
    page = german.page

    def check(expected: str) -> None:
        expect(page.get_by_text(expected).filter(visible=True).first).to_be_visible()
        assert set(WORD.findall(page.evaluate(ON_THE_PAGE))) - vocabulary == set()

    check("Verbindung wird hergestellt")
    german.welcome()
    check("Worüber möchten Sie sprechen?")
    reply = {"role": "assistant", "turn": "t1"}
    german.emit("message", **row(1, "Hallo", turn="t1", client_id="t1"))
    german.emit("message", **row(2, "Welt", **reply))
    german.session(last_seq=2)
    german.emit("synced", cursor="c2")
    check("Welt")
    page.get_by_role("button", name="Schlechte Antwort").click()
    german.emit("ok", id=german.wait_for("feedback")["id"], turn="t1", feedback=-1)
    expect(page.get_by_placeholder("Was war falsch?")).to_be_focused()
    check("Schließen")
    page.get_by_role("button", name="Bearbeiten").click()
    check("Abbrechen")
    page.get_by_role("button", name="Abbrechen").click()
    states = [
        {"status": "failed", "error": "model_timeout"},
        {"status": "failed", "error": "too_rude"},
        {"status": "interrupted"},
        {"redacted": True, "text": ""},
        {"quarantined": True, "text": ""},
        {"role": "tool", "text": "ja", "result": {"call": "c1", "name": "", "failed": True}},
        {"calls": [{"id": "c2", "name": "suche", "args": '"ja"', "cut": True}]},
        {"reasoning": {"text": "ja", "cut": True}},
        {"role": "tool", "result": {"call": "c2", "name": "suche", "failed": False}},
        {"calls": [{"id": "c3", "name": "suche", "args": "", "cut": False}]},
        {
            "turn": "t2",
            "calls": [{"id": "c4", "name": "suche", "args": "", "cut": False}],
        },
        {"cut": True},
        {"role": "user", "text": "Hallo\n" * 30},
    ]
    for seq, state in enumerate(states, 3):
        german.emit("message", **{**row(seq, "Welt", **reply), **state})
    german.session(
        last_seq=15,
        running={"turn": "t2", "status": "running", "since": None},
        waiting=[{"turn": "t3", "text": "Welt"}],
    )
    german.emit("synced", cursor="c3")
    check("Das Modell hat zu lange gebraucht.")
    check("Wartet, bis sie an der Reihe ist.")
    check("Läuft …")
    for step in page.locator(".cm-step").all():
        step.evaluate("node => { node.open = true; }")
    check("Argumente")
    result = {"call": "c4", "name": "suche", "failed": False}
    german.emit("message", **row(16, "Welt", turn="t2", role="tool", result=result))
    event = {"kind": "tool", "name": "suche", "state": "started"}
    german.emit("delta", turn="t2", step=0, event=event)
    check("Verwendet suche …")
    german.session(last_seq=15, archived=True, live=False)
    check("Dieser Chat ist archiviert.")
    german.emit("bye", code=4404, reason="test", reconnect=False, after_ms=None)
    german.sockets[-1].close(code=4404)
    check("Dieser Chat wurde entfernt.")


@pytest.mark.browser
@pytest.mark.slow
def test_words_counts_and_times_are_in_the_language_of_the_page(german):
    page = german.page
    hello = german.welcome(row(1, "Hallo", created_at="2026-01-05T00:00Z"))
    assert hello["html"] == "de"
    box = page.get_by_role("textbox", name="Nachricht")
    expect(box).to_have_attribute("placeholder", "Nachricht schreiben")
    expect(page.locator(".cm-newer")).to_have_text("Hallo")
    expect(page.locator(".cm-tools time")).to_have_text(re.compile(r"^0?5\.(01\.|\s*Jan)"))
    box.fill("x" * 1_334)
    expect(page.locator(".cm-hint")).to_have_text("1.234 Zeichen zu lang")
    german.emit("reset", reason="diverged", epoch=8, lost=1)
    german.session(last_seq=0, epoch=8)
    german.emit("synced", cursor="c2")
    expect(page.locator("chat-memory .cm-banner")).to_contain_text(
        "1 Nachricht ist verloren gegangen."
    )


def stored(role: str = "assistant", status: str = "complete", **fields: Any) -> MessageEntry:
    """Return a message, as the page shows it."""
    columns = {"seq": 1, "revision": 0, "html": None, "text": "Hallo", "is_cut": False, "at": AT}
    marks = {"error": "", "redacted": False, "quarantined": False, "steps": steps()}
    return MessageEntry(role=role, status=status, **{**columns, **marks, **fields})


def steps(*entries: StepEntry, reasoning: str = "") -> RowSteps:
    return RowSteps(reasoning=reasoning, reasoning_cut=True, entries=[*entries])


def step(name: str = "suche", *, is_running: bool = False, **result: Any) -> StepEntry:
    """Return a tool call, with a result if it has fields."""
    columns = {"seq": 1, "revision": 0, "text": "ja", "is_cut": True, "failed": False}
    marks = {"redacted": True, "quarantined": True}
    found = ResultEntry(**{**columns, **marks, **result}) if result else None
    place: dict[str, Any] = {"seq": 1, "key": "1.0.0", "args": "{}", "args_cut": True}
    return StepEntry(name=name, result=found, is_running=is_running, **place)


def words_of(html: str) -> set[str]:
    texts = Texts()
    texts.feed(html)
    return set(WORD.findall(" ".join(texts.found)))


def test_no_word_of_a_message_is_english_in_german(vocabulary):
    with translation.override("de"):
        rows = [
            *(stored(role) for role in ("user", "assistant", "tool", "system")),
            *(stored(status="failed", error=failure_text(code)) for code in (*FAILURES, "rude")),
            stored(status="failed"),
            stored(status="interrupted"),
            stored(redacted=True, quarantined=True, is_cut=True),
            stored(steps=steps(step(), step(is_running=True), step("", text="ja"), reasoning="ja")),
            stored(steps=steps(step(failed=True), step("", text="ja"))),
            stored(role="tool", steps=steps(step(failed=True))),
            stored(html=markdown("| ja |\n| --- |\n\n```\nja\n```\n\n![ja](x) ![](x)")),
        ]
        for row in rows:
            html = render_to_string("chatmemory/_row.html", {"row": row, "key": "k"})
            assert words_of(html) - vocabulary == set()


@pytest.fixture
def in_german(settings) -> Iterator[None]:
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SUGGESTIONS": ["Hallo"]}
    with translation.override("de"):
        yield


@pytest.mark.slow
@pytest.mark.django_db
def test_no_word_of_the_pages_is_english_in_german(vocabulary, in_german):
    web, anna = Client(), make_user("anna")
    assert words_of(web.get("/accounts/login/").content.decode()) - vocabulary == set()
    web.force_login(anna)
    for key, columns in {"a": {"pinned_at": AT}, "b": {"archived_at": AT}, "c": {}}.items():
        make_session(key, owner=anna, title="Welt", last_message_at=AT, **columns)
    make_session("d", owner=anna)
    services.append_messages(
        session_key="d", messages=make_messages("Hallo", "ja"), by=Actor.user(anna)
    )
    paths = ("", "~archived/", "~deleted/", "~data/", "a/", "b/options/", "d/", "unknown/")
    queries = ("?title=Hallo", "?title=demo", "?page=x")
    for path_ in (*paths, *queries):
        assert words_of(web.get(f"/chat/{path_}").content.decode()) - vocabulary == set(), path_
    web.post("/chat/d/delete/")
    assert words_of(web.get("/chat/~deleted/").content.decode()) - vocabulary == set()
    for name in ("anna", "demo"):
        html = web.post("/chat/~data/erase/", {"username": name}, follow=True).content.decode()
        assert words_of(html) - vocabulary == set()
    for _, problem in PROBLEMS.values():
        html = render_to_string("chatmemory/problem.html", {"problem": problem})
        assert words_of(html) - vocabulary == set()


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    "language", ["de_DE", *(pytest.param(one, marks=pytest.mark.long) for one in ("?", ""))]
)
def test_without_a_catalog_the_words_are_english_in_any_language(page, language):
    html = PAGE.replace("<!doctype html>", f'<!doctype html><html lang="{language}">')
    page.route(f"{SITE}/", lambda route: route.fulfill(body=html, content_type="text/html"))
    server = ScriptedServer(page)
    page.goto(SITE)
    server.welcome(row(1, "Hi"))
    chat = Chat(page)
    chat.expect_live()
    chat.box.fill("x" * 1_334)
    expect(page.locator(".cm-hint")).to_have_text("Too long by 1,234 characters")


SIDES = re.compile(
    r"(?:margin|padding|border)-(?:left|right)|[{;\s](?:left|right):|text-align: (?:left|right)"
    r"|(?:margin|padding): [^\s;(]+ ([^\s;(]+) [^\s;(]+ (?!\1;)[^\s;]+;"
)
ALLOWED = ("align-left", "align-right", "left: 50%")
"""Columns whose side the Markdown names, and what is centered."""


STYLES = {str(file.relative_to(FILES)) for file in FILES.rglob("*.css")}


@pytest.mark.parametrize("name", sorted(name for name in STYLES if not name.startswith("admin/")))
def test_no_style_names_left_or_right(name):
    lines = (FILES / name).read_text(encoding="utf-8").splitlines()
    assert [
        line for line in lines if SIDES.search(line) and not any(one in line for one in ALLOWED)
    ] == []


@pytest.mark.parametrize(("language", "direction"), [("ar", "rtl"), ("he", "rtl"), ("de", "ltr")])
def test_the_page_has_the_direction_of_its_language(language, direction):
    with translation.override(language):
        assert f'<html lang="{language}" dir="{direction}">' in session_page()


PLACES = """() => {
    const box = (selector) => {
        const {left, right} = document.querySelector(selector).getBoundingClientRect();
        return [Math.round(left), Math.round(innerWidth - right)];
    };
    const names = [".cm-side", ".cm-brand", ".cm-send", ".cm-user .cm-text", ".cm-log"];
    return Object.fromEntries(names.map((name) => [name, box(name)]));
}"""


@pytest.mark.browser
@pytest.mark.slow
def test_a_page_from_right_to_left_is_mirrored(page):
    texts = ["مرحبا", "An English text.", "A text"]
    open_chat(page, texts, language="he")
    mirrored = page.evaluate(PLACES)
    open_chat(page, texts, language="en")
    assert {
        name: [right, left] for name, (left, right) in page.evaluate(PLACES).items()
    } == mirrored


EDGES = """(node) => {
    const range = new Range();
    range.selectNodeContents(node);
    const {left, right} = range.getBoundingClientRect();
    const box = node.closest(".cm-rich").getBoundingClientRect();
    return [Math.round(left - box.left), Math.round(box.right - right)];
}"""
"""The distance of a paragraph's text from the sides of its message."""


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("language", ["ar", pytest.param("en", marks=pytest.mark.long)])
def test_each_paragraph_has_its_own_direction_and_code_is_from_left_to_right(page, language):
    reply = "```\nx = 1\n```\n\n- نص عربي\n\nنص عربي\n\nAn English text"
    open_chat(page, ["مرحبا", reply], language=language)
    arabic, english = (node.evaluate(EDGES) for node in page.locator(".cm-rich > p").all())
    assert (arabic[1], english[0]) == (0, 0)
    assert min(arabic[0], english[1]) > 100
    item = page.locator(".cm-rich li").evaluate(EDGES)
    assert item[1] < item[0]  # the labels of the code do not make the list English
    assert page.locator(".cm-code").evaluate("node => getComputedStyle(node).direction") == "ltr"


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.slow
def test_a_narrow_page_from_right_to_left_fits_and_its_list_is_at_the_right(page):
    page.set_viewport_size({"width": 390, "height": 800})
    open_chat(page, ["مرحبا", "| " + "long " * 30 + "|\n| --- |\n| b |"], language="ar")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    opener = page.get_by_role("button", name="Chats")
    box = opener.bounding_box()
    assert box
    assert box["x"] > 300
    opener.click()
    drawer = page.locator(".cm-aside")
    expect(drawer).to_have_css("translate", "0px")
    box = drawer.bounding_box()
    assert box
    assert box["x"] + box["width"] == 390
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.browser
@pytest.mark.slow
def test_the_list_of_chats_has_times_in_the_zone_of_the_user(launch, chromium):
    with launch(chromium).new_context(timezone_id="Asia/Tokyo") as context:
        page = context.new_page()
        open_chat(page, language="de")  # a script shows the times of the list here and elsewhere
        expect(page.locator(".cm-list time").first).to_have_text("02.03.2026, 18:30")
