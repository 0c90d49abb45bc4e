from __future__ import annotations

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.template import Context, Template

from chatmemory.errors import NotFound

KEY = "0b6f3b0c-9d2f-4c39-8d0c-6f3a0c2b1e4d"
SCRIPT = '<script type="module" src="/static/chatmemory/chat.js"></script>\n'
urlpatterns: list[object] = []


def drawn(tag, **context):
    template = Template("{% load chatmemory %}{% chatmemory_widget " + tag + " %}")
    return template.render(Context({"key": KEY, **context}))


def request_of(user):
    request = HttpRequest()
    request.user = user
    return request


def test_the_tag_loads_the_script_and_names_session_page_and_person():
    request = request_of(User(pk=7))
    assert drawn("session_key=key", request=request) == (
        f'{SCRIPT}<chat-memory page="/chat/{KEY}/" person="7" url="/ws/chat/{KEY}/" create>'
        "</chat-memory>"
    )
    request = request_of(User(pk=7, is_staff=True))
    assert drawn("session_key='own.key'", request=request) == (
        f'{SCRIPT}<chat-memory page="/chat/own.key/" person="7" url="/ws/chat/own.key/" details>'
        "</chat-memory>"
    )


def test_attributes_are_escaped_and_can_be_omitted():
    tag = 'mode="button" label=label color_scheme="dark" open=True create=no page=none'
    found = drawn(
        f"session_key=key {tag}",
        label='"><b>',
        no=False,
        none=None,
        request=request_of(AnonymousUser()),
    )
    assert found == (
        f'{SCRIPT}<chat-memory color-scheme="dark" label="&quot;&gt;&lt;b&gt;" mode="button" '
        f'url="/ws/chat/{KEY}/" open></chat-memory>'
    )


@pytest.mark.urls(__name__)
def test_without_the_chat_pages_the_element_has_no_page():
    assert "page=" not in drawn("session_key=key")


@pytest.mark.parametrize("key", ["", "a/b", "é", "a b"])
def test_an_impossible_key_is_refused(key):
    with pytest.raises(NotFound):
        drawn("session_key=bad", bad=key)
