"""The page docs/howto/streams.md."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import include, path

from tests.factories import make_user
from tests.test_examples import ROOT, run_example

pytestmark = pytest.mark.django_db

PAGE = "docs/howto/streams.md"
ADDRESS = re.compile(r"`(GET|POST) (ui/[^`? ]+)")


def test_the_line_of_the_page_mounts_each_address_that_it_names(settings):
    names = run_example(PAGE, "chatmemory.streams.urls", path=path, include=include, urlpatterns=[])
    settings.ROOT_URLCONF = tuple(names["urlpatterns"])
    client = Client()
    client.force_login(make_user("ann"))
    found = {*ADDRESS.findall((ROOT / PAGE).read_text())}
    assert len(found) == 7
    for method, address in found:
        text = re.sub("<[a-z]+>", "no-such-chat", address)
        for end in ("", "/"):
            answer = client.generic(method, f"/api/{text}{end}", "{}", "application/json")
            # Of a WSGI server, or of a chat that does not exist; an unknown address has no problem.
            assert answer.status_code in (400, 404, 501), address
            assert answer["Content-Type"] == "application/problem+json"
