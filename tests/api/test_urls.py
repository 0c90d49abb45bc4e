"""URLs that do not exist: each method gets a problem, with or without a login."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import Resolver404, include, path, resolve
from drf_spectacular.generators import SchemaGenerator

from tests.api.calls import JSON, problem
from tests.test_examples import run_example

pytestmark = [pytest.mark.django_db, pytest.mark.regression]

VERBS = ("get", "head", "options", "post", "put", "patch", "delete", "trace")
UNKNOWN = (
    "sessions",
    "sessions//",
    "sessions/talk",
    "sessions/talk/messages",
    "sessions/talk/other/",
    "sessions/talk/messages/-1/",
    "sessions/talk/messages/1.5/",
    "sessions/talk/messages/" + 5_000 * "9" + "/",
    "sessions/a%2Fb/turns/c1/",
    "sessions/a%0Ab/turns/c1/more/",
    "removed/-1/restore/",
    "own-data/",
    "tickets/1/",
    "health/details/",
)

urlpatterns = [path("other/api/", include("chatmemory.api.urls"))]


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("address", UNKNOWN)
def test_each_method_of_an_unknown_url_is_not_found(api, talk, address):
    for client in (api, Client(enforce_csrf_checks=True)):
        for verb in VERBS:
            answer = getattr(client, verb)(f"/other/api/{address}")
            assert answer.status_code == 404
            assert answer["Content-Type"] == "application/problem+json"
            assert answer["Cache-Control"] == "no-store"
            assert "Allow" not in answer
            if verb not in ("head", "trace"):
                assert problem(answer)[1] == "not_found"


@pytest.mark.urls(__name__)
def test_a_write_without_the_last_slash_is_not_redirected(api, talk):
    """A redirect would turn it into a GET."""
    answer = api.post("/other/api/sessions", {"title": "x"}, content_type=JSON, follow=True)
    assert problem(answer)[:2] == (404, "not_found")
    assert "slash" in answer.json()["detail"]


@pytest.mark.slow
def test_a_project_can_answer_all_other_urls_in_the_same_way(api):
    assert problem(api.get("/api/other/"))[:2] == (404, "not_found")
    assert api.get("/api/docs/").status_code == 200


def test_the_urls_of_the_page_answer_all_others(settings):
    names = run_example("docs/reference/api.md", "Unknown.as_view()")
    settings.ROOT_URLCONF = tuple(names["urlpatterns"])
    assert problem(Client().get("/chat/api/other/"))[:2] == (404, "not_found")
    assert Client().get("/chat/api/health/").status_code == 200


@pytest.mark.slow
@pytest.mark.regression
def test_the_demo_generates_its_schema_once_whatever_the_query(api, monkeypatch):
    found = api.get("/api/schema/").json()
    assert "/api/sessions/" in found["paths"]
    monkeypatch.delattr(SchemaGenerator, "parse")
    for query in ("?version=2", "?lang=de", "?format=json"):
        assert api.get(f"/api/schema/{query}").json() == found


@pytest.mark.regression
@pytest.mark.parametrize("page", ["schema", "docs"])
def test_the_pages_of_the_schema_are_only_read(api, page):
    assert api.options(f"/api/{page}/").status_code == 405


@pytest.mark.parametrize("address", ["other/", "health", "sessionsx/", ""])
def test_urls_that_the_api_does_not_use_belong_to_the_host(address):
    with pytest.raises(Resolver404):
        resolve(f"/other/api/{address}", urlconf=__name__)
