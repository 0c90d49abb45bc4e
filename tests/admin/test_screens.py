"""Every page of the admin in a real browser: light and dark, wide and on a phone."""

from __future__ import annotations

import re

import pytest

from tests.admin.scene import MASKED, NO_PAGES, PAGES, all_pages, make_scene, routes
from tests.admin.screens import NARROW, WIDE, Screens


def test_each_address_is_a_page_or_has_a_reason_to_be_none():
    assert routes() == PAGES.keys() | NO_PAGES.keys()
    assert not PAGES.keys() & NO_PAGES.keys()


@pytest.fixture
def scene(transactional_db):
    return make_scene()


@pytest.mark.slow
def test_each_page_of_a_second_site_leads_to_that_site(scene, client, settings):
    settings.ROOT_URLCONF = "tests.two_admins"
    client.force_login(scene.root)
    for page in all_pages():
        answer = client.get(scene.address(page.path).replace("/admin/", "/ops/", 1))
        assert answer.status_code == 200, page.name
        # The users have pages only on the other site.
        links = re.findall(r'"/admin/(?!auth/)[^"]*', answer.content.decode())
        assert links == [], page.name


def check(screens, *, is_audited):
    """Check the open page in both schemes and widths, without loading it again."""
    page = screens.page
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="light")
    screens.check_layout()
    if is_audited:
        screens.check_access()
    page.emulate_media(color_scheme="dark")
    if is_audited:
        screens.check_access("color-contrast", "link-in-text-block")
    page.set_viewport_size(NARROW)
    screens.check_layout()
    if is_audited:
        screens.check_access("scrollable-region-focusable")


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_each_page_fits_and_is_accessible_under_a_strict_policy(
    launch, chromium, live_server, scene, settings
):
    screens = Screens(launch(chromium), live_server.url, scene.cookie)
    for pages, mode in ((all_pages(), "normal"), (MASKED, "masked")):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": mode}
        for one in pages:
            screens.open(one.name, scene.address(one.path))
            screens.check_offers(one.offers)
            if one.menu:
                screens.check_menu(one.menu)
            check(screens, is_audited=one.is_audited)
    assert screens.problems == [], "\n".join(screens.problems)


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_each_page_fits_in_german(launch, chromium, live_server, scene, settings):
    """German words are longer than English ones."""
    settings.LANGUAGE_CODE = "de"
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "LocaleMiddleware" not in name]
    screens = Screens(launch(chromium), live_server.url, scene.cookie)
    for one in all_pages():
        screens.open(one.name, scene.address(one.path))
        assert screens.page.locator("html").get_attribute("lang") == "de"
        for size in (WIDE, NARROW):
            screens.page.set_viewport_size(size)
            screens.check_layout()
    assert screens.problems == [], "\n".join(screens.problems)
