"""Visitors on the pages of other sites: the origin of the embed, and what browsers may read."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import pytest
from django.core.cache import cache

from chatmemory.access.visitors import COOKIE
from chatmemory.models import Session, Visitor
from tests.api.calls import post, problem
from tests.api.test_visitors import VISITORS, Browser
from tests.factories import make_visitor

SHOP = "https://shop.example"
OTHER = "https://other.example"
EVIL = "https://evil.example"
KEY = str(uuid.UUID(int=0, version=4))

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _embeds(settings):
    embeds = {"shop": [SHOP], "other": [OTHER]}
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True, "EMBEDS": embeds}
    cache.clear()
    yield
    cache.clear()


class Page(Browser):
    """A page of another site: no cookie and no CSRF token, but an origin and perhaps a secret."""

    def __init__(self, origin=SHOP, token=None, **more):
        super().__init__(csrf=None, **more)
        self.cookies.clear()
        self.own = {"origin": origin, "authorization": token and f"Visitor {token}"}

    def generic(self, method, path, *args, **more):
        given = {"referer": None, **self.own, **(more.pop("headers", None) or {})}
        return super().generic(method, path, *args, headers=given, **more)


def test_a_visitor_of_an_embed_chats_with_the_secret_of_the_answer():
    created = post(Page(), VISITORS, {"embed": "shop"})
    [visitor] = Visitor.objects.all()
    assert (created.status_code, visitor.embed) == (201, "shop")
    assert created.json()["visitor"] == visitor.digest
    assert not created.cookies
    page = Page(token=created.json()["token"])
    assert post(page, "/api/sessions/", {"key": KEY}).status_code == 201
    assert Session.objects.get().scope == visitor.scope
    sent = post(page, f"/api/sessions/{KEY}/messages/", {"client_id": "c1", "text": "hi"})
    assert sent.status_code == 202
    assert page.delete("/api/visitors/me/").status_code == 200
    assert not Visitor.objects.exists()


@pytest.mark.parametrize(
    ("embed", "origin"),
    [("shop", OTHER), ("shop", EVIL), ("shop", None), ("shop", "null"), ("unknown", SHOP)],
)
def test_only_the_origins_of_an_embed_create_its_visitors(embed, origin):
    answer = post(Page(origin), VISITORS, {"embed": embed})
    assert problem(answer)[:2] == (403, "forbidden")
    assert not Visitor.objects.exists()


@pytest.mark.parametrize("origin", [OTHER, EVIL, None, "https://testserver"])
def test_a_secret_is_refused_on_the_pages_of_other_embeds(origin):
    token = make_visitor(embed="shop").token
    assert Page(SHOP, token).get("/api/sessions/").status_code == 200
    assert Page(origin, token).get("/api/sessions/").status_code == 401


def test_a_removed_embed_ends_its_visitors(settings):
    page = Page(SHOP, make_visitor(embed="shop").token)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "EMBEDS": {}}
    answer = page.get("/api/sessions/")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Session, Visitor"


def test_the_cookie_cannot_contain_the_secret_of_an_embed():
    browser = Browser(make_visitor(embed="shop").token)
    assert browser.get("/api/sessions/").status_code == 401


def test_a_foreign_page_cannot_use_the_cookie_of_this_site():
    """A browser that sends third-party cookies: still no write, and no answer for scripts."""
    page = Page()
    page.cookies[COOKIE] = make_visitor().token
    assert problem(post(page, "/api/sessions/", {}))[:2] == (403, "forbidden")
    listed = page.get("/api/sessions/")
    assert "Access-Control-Allow-Credentials" not in listed.headers
    assert not Session.objects.exists()


def test_browsers_let_the_pages_of_embeds_alone_read_answers(settings):
    token = make_visitor(embed="shop").token
    shop, evil = Page(SHOP, token).get("/api/sessions/"), Page(EVIL).get("/api/sessions/")
    assert shop.headers["Access-Control-Allow-Origin"] == SHOP
    assert "Origin" in shop.headers["Vary"]
    assert "Origin" in evil.headers["Vary"]
    assert "Access-Control-Allow-Origin" not in evil.headers
    asked = Page(SHOP).options("/api/sessions/")
    assert (asked.status_code, asked.headers["Access-Control-Allow-Origin"]) == (204, SHOP)
    assert "Authorization" in asked.headers["Access-Control-Allow-Headers"]
    assert Page(EVIL).options("/api/sessions/").status_code in (401, 405)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "EMBEDS": {}}
    assert "Vary" not in Page(SHOP).get("/api/health/").headers


def test_new_visitors_of_an_embed_are_limited_beside_those_of_other_embeds(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "EMBED_VISITORS_PER_MINUTE": 1}
    assert post(Page(), VISITORS, {"embed": "shop"}).status_code == 201
    limited = post(Page(), VISITORS, {"embed": "shop"})
    assert problem(limited)[:2] == (429, "rate_limited")
    assert post(Page(OTHER), VISITORS, {"embed": "other"}).status_code == 201


def test_the_visitors_of_embeds_end_earlier(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "EMBED_DAYS": 3}
    shopper, here = (
        datetime.fromisoformat(post(page, VISITORS, body).json()["ends_at"])
        for page, body in ((Page(), {"embed": "shop"}), (Browser(), {}))
    )
    assert round((here - shopper) / timedelta(days=1)) == 30 - 3


@pytest.mark.parametrize("embed", [5, None, "a b", "x" * 65, "\0"])
def test_an_impossible_embed_is_bad_input(embed):
    assert problem(post(Page(), VISITORS, {"embed": embed}))[0] == 400
    assert not Visitor.objects.exists()
