"""Every page of the admin under a theme, with screenshots in var/screens (`make themes`)."""

from __future__ import annotations

import pytest
from django.conf import settings as django_settings

from tests.admin.scene import MASKED, all_pages, make_scene
from tests.admin.screens import NARROW, POLICY, WIDE, Screens

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db(transaction=True)]

THEME = getattr(django_settings, "THEME", "django")
FOLDER = django_settings.BASE_DIR / "var/screens" / THEME
HAS_DARK = {"django": True, "unfold": True, "grappelli": False, "jazzmin": False}
"""Whether the theme follows the color scheme of the browser."""

OWN = {
    "django": (),
    "unfold": ("Filters",),
    "grappelli": ("Filters",),
    "jazzmin": ("Filters", "Show all"),
}
"""What the theme offers in another way: filters in a drawer, an icon."""


def shoot(screens, name, view):
    screens.page.screenshot(path=FOLDER / f"{name.replace(' ', '-')}-{view}.png", full_page=True)


def check(screens, page):
    """Check the open page, and store screenshots of it."""
    for scheme in ("light", "dark") if HAS_DARK[THEME] else ("light",):
        screens.page.emulate_media(color_scheme=scheme)
        for width, size in (("wide", WIDE), ("phone", NARROW)):
            screens.at = f"{page.name}, {scheme}, {width}"
            screens.page.set_viewport_size(size)
            screens.check_offers(tuple(offer for offer in page.offers if offer not in OWN[THEME]))
            screens.check_buttons()
            shoot(screens, page.name, f"{scheme}-{width}")
        screens.check_contrast_of_buttons()
    screens.page.set_viewport_size(WIDE)


def test_each_page_offers_readable_buttons(launch, chromium, live_server, settings):
    scene = make_scene()
    FOLDER.mkdir(parents=True, exist_ok=True)
    browser = launch(chromium)
    policy = POLICY if THEME == "django" else ""
    screens = Screens(browser, live_server.url, scene.cookie, policy)
    for pages, mode in ((all_pages(), "normal"), (MASKED, "masked")):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": mode}
        for page in pages:
            screens.open(page.name, scene.address(page.path))
            check(screens, page)
    assert screens.problems == []
