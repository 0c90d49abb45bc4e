from __future__ import annotations

import re
from html import unescape

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.template import Context, Template
from django.test import RequestFactory
from django.utils import translation

from chatmemory.access.visitors import COOKIE
from chatmemory.errors import NotFound
from tests.blocks import block_with

KEY = "0b6f3b0c-9d2f-4c39-8d0c-6f3a0c2b1e4d"
SCRIPT = '<script type="module" src="/static/chatmemory/element/chat.js"></script>\n'
LOGIN = "/accounts/login/?next=/shop/%3Fpage%3D2"
urlpatterns: list[object] = []


def drawn(arguments="", *, user=None, cookies=None, **context):
    """Return the attributes of the element, for a user who is signed in or an anonymous one."""
    request = RequestFactory().get("/shop/?page=2")
    request.COOKIES.update(cookies or {})
    request.user = user or AnonymousUser()
    template = Template("{% load chatmemory %}{% chatmemory_widget " + arguments + " %}")
    text = template.render(Context({"key": KEY, "request": request, **context}))
    tag, element = text.removeprefix(SCRIPT).split(">", 1)
    assert tag.startswith("<chat-memory ")
    assert element.endswith("</chat-memory>")
    found = re.findall(r' ([a-z-]+)(?:="([^"]*)")?', tag)
    return {name: unescape(value) for name, value in found}


def test_the_tag_names_session_page_and_person():
    assert drawn("session_key=key", user=User(pk=7)) == {
        "url": f"/ws/chat/{KEY}/",
        "create": "",
        "page": f"/chat/{KEY}/",
        "api": "/api/",
        "person": "7",
        "login": LOGIN,
    }
    found = drawn("session_key='own.key'", user=User(pk=7, is_staff=True))
    assert "create" not in found
    assert found["details"] == ""


class Nonce:
    """As those of django-csp and Django 6: false before its first use."""

    def __str__(self):
        return "n0nce"

    def __bool__(self):
        return False


@pytest.mark.regression
@pytest.mark.parametrize("name", ["csp_nonce", "_csp_nonce"])
def test_each_script_has_the_nonce_of_the_request(name):
    request = RequestFactory().get("/shop/")
    request.user = AnonymousUser()
    setattr(request, name, Nonce())
    template = Template("{% load chatmemory %}{% chatmemory_widget %}{% chatmemory_words %}")
    with translation.override("de"):
        text = template.render(Context({"request": request}))
    assert text.count("<script") == text.count(' nonce="n0nce"></script>') == 3


def test_without_a_key_the_browser_chooses_the_session():
    found = drawn(user=User(pk=7))
    assert found == {"sockets": "/ws/chat/", "api": "/api/", "person": "7", "login": LOGIN}


def test_a_visitor_gets_a_csrf_token_and_others_are_sent_to_the_login(settings):
    assert drawn() == {"sockets": "/ws/chat/", "login": LOGIN, "signed-out": ""}
    chat_settings = settings.CHATMEMORY
    settings.CHATMEMORY = {**chat_settings, "SOCKET_AUTH": "tests.auth_for_tests.auth"}
    assert drawn() == {"sockets": "/ws/chat/", "login": LOGIN}  # the socket may know the person
    settings.CHATMEMORY = {**chat_settings, "ALLOW_ANONYMOUS": True}
    found = drawn("session_key=key")
    assert len(found.pop("csrf")) == 64
    assert found == {"url": f"/ws/chat/{KEY}/", "create": "", "api": "/api/"}


@pytest.mark.parametrize(
    ("changes", "cookies", "asks"),
    [
        ({}, {COOKIE: "secret"}, True),
        ({}, {}, False),
        ({"VISITOR_ADOPT": "auto"}, {COOKIE: "secret"}, True),
        ({"ALLOW_ANONYMOUS": False}, {COOKIE: "secret"}, False),
    ],
)
def test_who_was_a_visitor_is_asked_after_the_login(settings, changes, cookies, asks):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True, **changes}
    found = drawn(user=User(pk=7), cookies=cookies)
    assert ("adopt" in found, "csrf" in found) == (asks, asks)


def test_attributes_are_escaped_and_can_be_omitted():
    tag = 'mode="button" label=label color_scheme="dark" open=True person=no page=none'
    label = '"><b>'
    found = drawn(f"session_key=key {tag}", user=User(pk=7), label=label, no=False, none=None)
    assert found["label"] == label
    assert (found["color-scheme"], found["open"]) == ("dark", "")
    assert not {"person", "page"} & set(found)


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("user", [None, User(pk=7)])
def test_without_pages_and_api_nothing_is_loaded_from_them(settings, user):
    settings.LOGIN_URL = "/in/"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True}
    found = drawn("session_key=key", user=user, cookies={COOKIE: "secret"})
    assert not {"page", "api", "csrf", "adopt"} & set(found)
    assert found["login"].startswith("/in/")


def test_the_element_contains_the_suggestions_as_text(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SUGGESTIONS": ["Is 1 < 2?"]}
    request = RequestFactory().get("/")
    text = Template("{% load chatmemory %}{% chatmemory_widget %}").render(
        Context({"request": request})
    )
    assert '<button type="button" dir="auto">Is 1 &lt; 2?</button>' in text
    own = Template("{% load chatmemory %}{% chatmemory_widget suggestions=own %}")
    text = own.render(Context({"request": request, "own": ["Is 2 < 3?"]}))
    assert '<button type="button" dir="auto">Is 2 &lt; 3?</button>' in text
    assert "Is 1" not in text
    assert "<button" not in own.render(Context({"request": request, "own": []}))


def test_the_tag_loads_the_texts_of_the_language_first():
    request = RequestFactory().get("/shop/")
    template = Template("{% load chatmemory %}{% chatmemory_widget %}")
    with translation.override("de"):
        text = template.render(Context({"request": request}))
    assert re.match(r'<script src="/chat/~words/de\.js\?\w+"></script>\n' + re.escape(SCRIPT), text)


@pytest.mark.urls(__name__)
def test_without_pages_the_texts_are_english_in_any_language(settings):
    settings.LOGIN_URL = "/in/"
    with translation.override("de"):
        assert drawn("session_key=key")


@pytest.mark.parametrize("key", ["", "a/b", "é", "a b"])
def test_an_impossible_key_is_refused(key):
    with pytest.raises(NotFound):
        drawn("session_key=bad", bad=key)


def test_a_context_without_request_is_refused():
    with pytest.raises(ImproperlyConfigured, match=r"context_processors\.request"):
        drawn(request=None)


@pytest.mark.parametrize(("piece", "count"), [("session_key=key", 2), ("chatmemory_words", 0)])
def test_the_examples_of_the_page_are_drawn(piece, count):
    request = RequestFactory().get("/shop/")
    request.user = AnonymousUser()
    template = Template(block_with("docs/howto/widget.md", piece).text)
    with translation.override("de"):  # English needs no words
        text = template.render(Context({"request": request, "key": KEY}))
    assert text.count("<chat-memory ") == count
    assert "/~words/de.js?" in text
