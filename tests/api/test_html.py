"""Messages as HTML, which the pages, REST and the admin share."""

from __future__ import annotations

import pytest
from django.test import Client

from chatmemory import services
from chatmemory.rendering import markdown as module
from chatmemory.rendering import rows
from chatmemory.rendering.markdown import markdown
from chatmemory.services import Actor
from tests.api.calls import MESSAGES, problem, send, talk_of
from tests.factories import make_user

pytestmark = pytest.mark.django_db

QUESTION = "is it **bold** or <b>?"
REPLY = "it is **bold**"
HTML = ["<p>is it **bold** or &lt;b&gt;?</p>\n", "<p>it is <strong>bold</strong></p>\n"]


@pytest.fixture(autouse=True)
def _empty_cache():
    module._cache.clear()
    yield
    module._cache.clear()


@pytest.fixture
def bold(ann):
    return talk_of(ann, QUESTION, REPLY)


def html_in(api, query="html=true", **headers):
    messages = api.get(f"{MESSAGES}?{query}", headers=headers).json()["messages"]
    return [message["html"] for message in messages]


@pytest.mark.parametrize("query", ["html=true", "html=true&after=0", "html=true&before=3"])
def test_messages_contain_html_on_request(api, bold, query):
    assert html_in(api, query) == HTML


def test_missed_messages_contain_html_on_request(api, ann, bold):
    cursor = api.get(MESSAGES).json()["cursor"]
    talk = {"session_key": "talk", "by": Actor.user(ann)}
    services.append_messages(**talk, messages=[{"role": "assistant", "content": "*new*"}])
    assert html_in(api, f"html=true&cursor={cursor}") == ["<p><em>new</em></p>\n"]


def test_one_message_contains_html_on_request(api, bold):
    assert api.get(f"{MESSAGES}2/?html=true").json()["html"] == HTML[1]
    assert "html" not in api.get(f"{MESSAGES}2/").json()


@pytest.mark.parametrize("query", ["", "?html=false"])
def test_messages_contain_no_html_by_default(api, bold, query):
    assert all("html" not in each for each in api.get(f"{MESSAGES}{query}").json()["messages"])


def test_an_answer_contains_html_on_request(api, bold):
    [reply] = send(api, wait=True, html=True).json()["messages"]
    assert "*" in reply["text"]
    assert reply["html"] == markdown(reply["text"])
    [reply] = send(api, wait=True, client_id="c2").json()["messages"]
    assert "html" not in reply


@pytest.mark.parametrize("address", [MESSAGES, f"{MESSAGES}2/"])
@pytest.mark.parametrize("value", ["1", "", "True"])
def test_html_is_true_or_false(api, bold, address, value):
    assert problem(api.get(f"{address}?html={value}")) == (400, "bad_field", "html")
    assert problem(send(api, html="true")) == (400, "bad_field", "html")


def test_an_answer_renders_up_to_its_limits_and_one_message_always(api, ann, monkeypatch):
    talk_of(ann, "q", "*a*", "q", "*b*")
    monkeypatch.setattr(rows, "RENDERED_CHARS", 4)
    assert html_in(api) == ["<p>q</p>\n", "<p><em>a</em></p>\n", "<p>q</p>\n", None]
    assert api.get(f"{MESSAGES}4/?html=true").json()["html"] == "<p><em>b</em></p>\n"


def test_the_state_of_an_answer_depends_on_its_html(api, bold, settings):
    tags = [api.get(f"{MESSAGES}{query}")["ETag"] for query in ("", "?html=true")]
    settings.CHATMEMORY = {**settings.CHATMEMORY, "IMAGE_ORIGINS": ["https://images.example"]}
    tags.append(api.get(f"{MESSAGES}?html=true")["ETag"])
    assert len(set(tags)) == 3


def test_pages_rest_and_admin_render_a_row_once(api, bold, monkeypatch):
    assert html_in(api) == HTML
    monkeypatch.delattr(module, "_parser")
    root = Client()
    root.force_login(make_user("root", is_staff=True, is_superuser=True))
    session = f"/admin/chatmemory/session/{bold.pk}"
    shown = [root.get(f"{session}/{page}/") for page in ("change", "messages/2")]
    for answer in (api.get("/chat/talk/"), *shown):
        assert HTML[1].strip() in answer.content.decode()
    assert api.get("/chat/talk/html/").json()["messages"][0]["html"] == HTML[1]


def test_a_redacted_message_is_not_in_the_cache_of_any_reader(api, ann, bold):
    assert html_in(api) == HTML
    services.redact_message(session_key="talk", seq=2, by=Actor.user(ann), reason="")
    assert html_in(api) == [HTML[0], ""]
    for address in ("/chat/talk/", "/chat/talk/html/"):
        assert "<strong>bold" not in api.get(address).content.decode()


def test_an_erased_message_is_not_in_the_cache_of_a_session_with_its_primary_key(api, ann, bold):
    assert html_in(api) == HTML
    services.erase_person(by=Actor.server("tests"), scope=bold.scope, reason="")
    assert api.get(f"{MESSAGES}?html=true").status_code == 404
    assert talk_of(ann, "q", "*other*", id=bold.pk).pk == bold.pk
    assert html_in(api) == ["<p>q</p>\n", "<p><em>other</em></p>\n"]
