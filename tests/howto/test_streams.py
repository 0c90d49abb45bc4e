"""The page docs/howto/streams.md."""

from __future__ import annotations

import re
import textwrap

import pytest
from django.test import Client
from django.urls import include, path

from tests.factories import make_user
from tests.test_examples import ROOT, run_example

pytestmark = pytest.mark.django_db

PAGE = "docs/howto/streams.md"
FOLDERS = sorted((ROOT / "docs/examples").glob("*/src"))
ADDRESS = re.compile(r"`(GET|POST) (ui/[^`? ]+)")


def test_the_line_of_the_page_mounts_each_address_that_it_names(settings):
    urls = run_example("README.md", "# urls.py")["urlpatterns"]
    names = run_example(
        PAGE, "chatmemory.streams.urls", path=path, include=include, urlpatterns=urls
    )
    settings.ROOT_URLCONF = tuple(names["urlpatterns"])
    client = Client()
    client.force_login(make_user("ann"))
    found = {*ADDRESS.findall((ROOT / PAGE).read_text())}
    assert len(found) == 7
    for method, address in found:
        text = re.sub("<[a-z]+>", "no-such-chat", address)
        for end in ("", "/"):
            answer = client.generic(method, f"/chat/api/{text}{end}", "{}", "application/json")
            # Of a WSGI server, or of a chat that does not exist; an unknown address has no problem.
            assert answer.status_code in (400, 404, 501), address
            assert answer["Content-Type"] == "application/problem+json"


def test_the_hook_of_the_page_is_that_of_its_example():
    """Which tests/front_ends run."""
    [hook] = re.findall(r"```jsx\n(const {messages.*?)```", (ROOT / PAGE).read_text(), re.DOTALL)
    source = (ROOT / "docs/examples/react-ai-sdk/src/main.jsx").read_text()
    assert textwrap.indent(hook, "  ") in source


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_an_example_uses_the_addresses_of_the_page(folder):
    text = "".join(path.read_text() for path in folder.iterdir())
    assert re.findall(r"""["'`][/a-z]*/api\b[^"'`]*""", text) == ['"/chat/api']
