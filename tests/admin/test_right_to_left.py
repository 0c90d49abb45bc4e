"""The admin in a right-to-left language: names, arrows, charts, and that it fits on a phone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import chatmemory
from chatmemory.services import user_scope
from tests.admin.scene import FIGURES, make_scene
from tests.admin.screens import NARROW, Screens
from tests.admin.visits import ACTING, LIST, action_url, operator, talk_of
from tests.factories import make_user

STYLES = [
    *Path(chatmemory.__file__).parent.glob("static/chatmemory/admin/*.css"),
    *Path(chatmemory.__file__).parent.glob("statistics/static/*/*.css"),
]

BOXES = """
(element) => {
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    for (const { 0: word, index } of texts.currentNode.data.matchAll(/[\\p{L}\\p{N}]+|[^\\s]/gu)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, index);
      range.setEnd(texts.currentNode, index + word.length);
      if (range.getBoundingClientRect().width) found.push([word, range.getBoundingClientRect().x]);
    }
  }
  return found.sort((one, other) => one[1] - other[1]).map(([word]) => word).join(" ");
}
"""
"""The words and signs of an element as they are drawn, from left to right."""


def test_styles_name_no_side():
    """The start and the end of a line; only a text is aligned to a side, as Django does it."""
    assert len(STYLES) == 3
    for file in STYLES:
        found = re.findall(
            r"^\s*((?:margin|padding|border|inset)-(?:left|right)|left|right|float)\s*:(?! none)",
            file.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        assert found == [], file.name


@pytest.fixture
def scene(transactional_db):
    return make_scene()


@pytest.fixture
def screens(launch, chromium, live_server, scene, settings):
    settings.LANGUAGE_CODE = "ar"
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "LocaleMiddleware" not in name]
    opened = Screens(launch(chromium), live_server.url, scene.cookie)
    yield opened
    assert opened.problems == []


def drawn(page, selector):
    return page.locator(selector).first.evaluate(BOXES)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_names_arrows_and_charts_keep_their_direction(screens, scene):
    page = screens.open("talk", scene.address("session/{talk}/change/"))
    assert page.locator("html").get_attribute("dir") == "rtl"
    assert drawn(page, ".chatmemory-title") == "vip failed Where is my order ?"
    assert drawn(page, "a[rel=prev]") == "Previous ‹"  # noqa: RUF001  # an arrow
    assert drawn(page, ".breadcrumbs bdi") == "Where is my order ?"
    page = screens.open("list", scene.address("session/"))
    assert drawn(page, ".chatmemory-cut[title^='Where is']") == "Where is my order ?"
    page = screens.open("trim", scene.address("session/action/trim/?session={talk}"))
    content = page.locator("#content").bounding_box()
    for selector in (".chatmemory-title bdi", ".chatmemory-question"):
        box = page.locator(selector).bounding_box()
        assert box["x"] + box["width"] == pytest.approx(content["x"] + content["width"], abs=40)
    page = screens.open("statistics", f"/admin/{FIGURES}/?days=7")
    first, last = page.locator(".chatmemory-axis:has(span + span) span").all()[:2]
    assert first.bounding_box()["x"] < last.bounding_box()["x"]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_each_section_fits_on_a_phone(screens, scene):
    screens.page.set_viewport_size(NARROW)
    ali = make_user("علي")
    talk = talk_of(ali, "Order 12: איפה ההזמנה שלי?", title="أين طلبي رقم 4711 (kettle)؟")
    paths = [f"{LIST}{talk.pk}/change/", f"{LIST}person/?scope={user_scope(ali)}", LIST]
    paths += [action_url("purge", talk), action_url("purge", talk, scene.talk)]
    paths += [f"/admin/{FIGURES}/"]
    paths += [f"/admin/chatmemory/{name}/" for name in ("auditentry", "job", "maintenance")]
    for path in paths:
        screens.open(path, path)
        screens.check_layout()


@pytest.mark.django_db
def test_a_name_is_isolated_in_the_question_and_in_the_message():
    talk = talk_of(None, title="أين طلبي 4711?")
    client = operator(*ACTING)
    page = client.get(action_url("purge", talk)).content.decode()
    assert "Remove “<bdi>أين طلبي 4711?</bdi>” with its 4 messages?" in page
    done = client.post(action_url("purge", talk), {"reason": "x", "count": 4}, follow=True)
    assert "“<bdi>أين طلبي 4711?</bdi>” with its 4 messages removed." in done.content.decode()
