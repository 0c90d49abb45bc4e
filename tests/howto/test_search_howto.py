"""The page docs/howto/search.md."""

from __future__ import annotations

import json

import pytest
from django.conf import settings as django_settings
from django.test import Client
from django.urls import include, path

from tests.api.calls import post, talk_of
from tests.blocks import block_with
from tests.factories import make_user
from tests.test_examples import run_example

pytestmark = pytest.mark.django_db

PAGE = "docs/howto/search.md"


@pytest.fixture
def ann():
    user = make_user("ann")
    talk_of(user, "Where is my green kettle?", "It left our store.")
    return user


def test_the_settings_of_the_page_are_those_of_this_project():
    names = run_example(PAGE, "INSTALLED_APPS +=", INSTALLED_APPS=[], CHATMEMORY={})
    assert set(names["INSTALLED_APPS"]) < set(django_settings.INSTALLED_APPS)
    assert names["CHATMEMORY"] == {"SEARCH_LANGUAGE": "english"}


@pytest.mark.slow
def test_the_line_of_the_page_mounts_the_search_which_answers_its_request(ann, settings):
    urls = run_example("README.md", "# urls.py")["urlpatterns"]
    names = run_example(
        PAGE, "chatmemory.search.urls", path=path, include=include, urlpatterns=urls
    )
    settings.ROOT_URLCONF = tuple(names["urlpatterns"])
    client = Client()
    client.force_login(ann)
    body = json.loads(block_with(PAGE, '"green kettle"').text)
    [hit] = post(client, "/chat/api/search/", body).json()["hits"]
    assert (hit["session"], hit["seq"]) == ("talk", 1)
    assert [hit["snippet"][a:b] for a, b in hit["ranges"]] == ["green", "kettle"]


def test_the_function_of_the_page_searches(ann):
    found_by = run_example(PAGE, "def found_by")["found_by"]
    assert found_by(ann, "gre") == [("talk", 1, "Where is my green kettle?")]
