"""The field that searches the list of chats, with and without the search of messages."""

from __future__ import annotations

import pytest
from django.urls import include, path
from django.views.generic import RedirectView

from tests.factories import make_user

pytestmark = pytest.mark.django_db

PAGES = ("/chat/~all/", "/chat/0b9f7c9e-8a64-4f0e-9d52-0d5c3c1f7a11/")
ARCHIVE = "/chat/~archived/"


class WithoutSearch:
    """The addresses of a host that has not included those of the search."""

    urlpatterns = (
        path("", RedirectView.as_view(url="chat/"), name="home"),  # in a template of the demo
        path("chat/", include("chatmemory.urls")),
        path("api/", include("chatmemory.api.urls")),
    )


@pytest.fixture
def web(client):
    client.force_login(make_user("ann"))
    return client


@pytest.mark.parametrize("page", PAGES, ids=["all", "chat"])
def test_the_field_has_the_address_of_the_search_of_messages(web, page):
    html = web.get(page).content.decode()
    assert ' data-messages="/api/search/"' in html
    assert ' placeholder="Search" aria-label="Search chats and messages"' in html


@pytest.mark.parametrize("page", [*PAGES, ARCHIVE], ids=["all", "chat", "archive"])
def test_without_the_address_only_titles_are_searched(web, settings, page):
    settings.ROOT_URLCONF = WithoutSearch
    html = web.get(page).content.decode()
    assert "data-messages" not in html
    label = "Search archived chats" if page == ARCHIVE else "Search chats"
    assert f' placeholder="{label}"' in html


def test_the_archive_searches_only_its_titles(web):
    assert "data-messages" not in web.get(ARCHIVE).content.decode()


def test_only_the_page_of_a_message_loads_the_script_that_shows_it(web):
    _, page = PAGES
    assert "list/place.js" not in web.get(page).content.decode()
    assert "list/place.js" in web.get(f"{page}?at=7").content.decode()
