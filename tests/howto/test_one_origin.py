"""A built front end and Django at one origin, as docs/howto/front-end.md serves them."""

from __future__ import annotations

import sys
from types import ModuleType

import httpx
import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from django.contrib.staticfiles import finders
from django.test import Client
from django.urls import path

from tests.blocks import block_with
from tests.proxies import nginx
from tests.servers import Connection, person_with_talk, start_servers
from tests.streams.front import Front

PAGE = "docs/howto/front-end.md"
ann = person_with_talk
serve = start_servers


@pytest.fixture
def dist(tmp_path):
    """The folder that Vite writes."""
    folder = tmp_path / "front/dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text('<script src="/static/assets/index-1.js"></script>')
    (folder / "assets/index-1.js").write_text("start();")
    return folder


class Site:
    """A server behind nginx."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.port = int(address.rpartition(":")[2])


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
async def test_nginx_serves_the_front_end_and_passes_the_rest_to_django(ann, serve, dist, tmp_path):
    [server] = await db(serve)()
    text = block_with(PAGE, "try_files").text
    replaced = {
        "/srv/example/front/dist": str(dist),
        "http://example;": f"{server.address};",
        "$connection_upgrade": '"upgrade"',
        "accounts|": "accounts|api|",  # of the demo
    }
    for old, new in replaced.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    with nginx(tmp_path, text) as address:
        async with httpx.AsyncClient(base_url=address, trust_env=False) as browser:
            for place in ("/", "/chats/7"):
                answer = await browser.get(place)
                assert answer.text == (dist / "index.html").read_text()
                assert answer.headers["Cache-Control"] == "no-cache"
            answer = await browser.get("/assets/index-1.js")
            assert (answer.text, answer.status_code) == ("start();", 200)
            assert "immutable" in answer.headers["Cache-Control"]
            assert "csrfmiddlewaretoken" in (await browser.get("/accounts/login/")).text
        async with Front(address, ann) as page, page.send("count 5") as stream:
            assert (await stream.rest())[-1]["finishReason"] == "stop"
        async with Connection(Site(address), ann) as socket:
            await socket.hello()


@pytest.mark.django_db
def test_django_serves_the_front_end(dist, settings, monkeypatch):
    given = {"BASE_DIR": dist.parents[1], "TEMPLATES": [{**django_settings.TEMPLATES[0]}]}
    exec(block_with(PAGE, "STATICFILES_DIRS").text, given)  # noqa: S102  # our own page
    settings.STATICFILES_DIRS = given["STATICFILES_DIRS"]
    settings.TEMPLATES = given["TEMPLATES"]
    urls = ModuleType("urls_of_one_origin")
    urls.urlpatterns = []
    exec(block_with(PAGE, "TemplateView").text, {**vars(urls), "path": path})  # noqa: S102  # our own page
    monkeypatch.setitem(sys.modules, "urls_of_one_origin", urls)
    settings.ROOT_URLCONF = "urls_of_one_origin"
    answer = Client().get("/")
    assert answer.text == (dist / "index.html").read_text()
    assert "csrftoken" in answer.cookies
    finders.get_finder.cache_clear()
    assert finders.find("assets/index-1.js") == str(dist / "assets/index-1.js")
    finders.get_finder.cache_clear()
