"""The pages, without a browser."""

from __future__ import annotations

import re
import time
import uuid
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.db import OperationalError, connection
from django.test import Client, override_settings
from django.urls import reverse

from chatmemory import codec, errors, services
from chatmemory.errors import ModelError
from chatmemory.models import Session
from chatmemory.pages.steps import MAX_TEXT_CHARS
from chatmemory.pages.views import (
    FAILURES,
)
from chatmemory.rendering import budget
from chatmemory.rendering.rows import RENDERED_CHARS
from chatmemory.services import Actor
from tests.blocks import ROOT
from tests.factories import make_messages, make_session, make_user
from tests.payloads import ELSEWHERE, PAYLOADS

RUNS = {"script", "style", "iframe", "object", "embed", "base", "meta", "link", "form", "input"}


class Tags(HTMLParser):
    """Collects the tags of a page with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem:
            self.inline += data


@pytest.fixture
def ann(db):
    return make_user("ann")


@pytest.fixture
def web(ann):
    """Return a client with Ann signed in."""
    client = Client()
    client.force_login(ann)
    return client


def talk(user, *texts, key="talk", **columns):
    """Store these messages in a session of the user."""
    make_session(key, owner=user, **columns)
    by = Actor.user(user)
    services.append_messages(session_key=key, messages=make_messages(*texts), by=by)


def html_of(response):
    return response.content.decode()


@pytest.mark.parametrize("path", ["", "~all/", "~new/", "talk/", "talk/html/", "talk/1/", "\x00/"])
@pytest.mark.django_db
def test_each_page_requires_a_login(path):
    response = Client().get(f"/chat/{path}")
    assert response.status_code == 302
    assert response["Location"].startswith("/accounts/login/?next=/chat/")


@pytest.mark.parametrize("path", ["", "html/", "1/"])
def test_another_users_session_is_not_found(web, path):
    talk(make_user("bob"), "a secret", key="talk")
    keys = ("talk", "never", "x" * 201, "a b", "a\x00")
    answers = [web.get(f"/chat/{key}/{path}") for key in keys]
    assert {answer.status_code for answer in answers} == {404}
    assert len({re.sub('value="[^"]+"', "", html_of(answer)) for answer in answers}) == 1


def test_a_new_key_opens_an_empty_chat_and_creates_nothing(web):
    key = str(uuid.uuid4())
    page = html_of(web.get(f"/chat/{key}/"))
    assert f'url="/ws/chat/{key}/"' in page
    assert " create>" in page
    assert not Session.objects.exists()


def test_another_users_new_key_opens_an_own_empty_chat(web):
    key = str(uuid.uuid4())
    talk(make_user("bob"), "a secret", key=key)
    page = html_of(web.get(f"/chat/{key}/"))
    assert "secret" not in page
    assert " create>" in page


def test_each_new_chat_has_its_own_address(web):
    addresses = {web.get("/chat/~new/")["Location"] for _ in range(2)}
    assert len(addresses) == 2
    assert all(codec.is_new_key(address.split("/")[-2]) for address in addresses)


def test_a_page_never_writes_to_the_database(web, ann):
    talk(ann, "hi", "hello")
    for path in ("", "~all/", "talk/", "talk/html/", "talk/1/", "~new/"):
        assert web.post(f"/chat/{path}").status_code == 405


def test_an_unavailable_database_is_shown_as_a_text(web):
    def fail(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "chatmemory_message" in sql:
            raise OperationalError("lost")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(fail):
        response = web.get("/chat/talk/")
    assert response.status_code == 503
    assert "The memory is unavailable." in html_of(response)


def test_superseded_rows_are_not_on_the_page(web, ann):
    talk(ann, "a typo", "an answer")
    about = {"session_key": "talk", "by": Actor.user(ann), "owner": "me"}
    edit = {"content": "no typo", "replaces": 1, "expect_seq": 1}
    services.admit_turn(client_id="new", **about, **edit)
    page = html_of(web.get("/chat/talk/"))
    assert re.findall(r'data-seq="(\d+)"', page) == ["3"]
    assert "no typo" in page


def test_the_newest_rows_are_on_the_page_without_a_script(web, ann):
    talk(ann, *(f"text {number}" for number in range(1, 61)))
    page = html_of(web.get("/chat/talk/"))
    assert [int(seq) for seq in re.findall(r'data-seq="(\d+)"', page)] == list(range(11, 61))
    assert "There are earlier messages." in page


def test_users_text_is_escaped_and_replies_are_markdown(web, ann):
    talk(ann, "**<b>**", "**<b>**")
    page = html_of(web.get("/chat/talk/"))
    assert "**&lt;b&gt;**" in page
    assert "<p><strong>&lt;b&gt;</strong></p>" in page


def test_an_interrupted_reply_is_marked(web, ann):
    talk(ann, "hi")
    session = Session.objects.get()
    columns = {"session": session, "role": "assistant", "text": "so f", "tokens": 1, "model": ""}
    session.messages.create(seq=2, status="interrupted", error="", **columns)
    session.messages.create(seq=3, status="failed", error="model_unavailable", **columns)
    Session.objects.update(last_seq=3)
    page = html_of(web.get("/chat/talk/")).replace("&#x27;", "'")
    assert "Stopped before the end." in page
    assert "The model is not available. Try again in a moment." in page


class Wordless(ModelError):  # as a host writes it: without a docstring
    code = "too_rude"


class Telling(ModelError):
    """Quota of the key 4711 used up."""

    code = "no_quota"


class Demanding(ModelError):
    """The model is down."""

    code = "is_down"

    def __init__(self, model: str) -> None:
        super().__init__(model)


@pytest.mark.parametrize("kind", [Wordless, Telling, Demanding])
def test_an_error_code_of_the_host_is_shown_as_a_general_text(web, ann, kind):
    make_session(owner=ann)
    columns = {"role": "assistant", "text": "so f", "tokens": 1, "model": "", "status": "failed"}
    Session.objects.get().messages.create(seq=1, error=kind.code, **columns)
    Session.objects.update(last_seq=1)
    assert '<p class="cm-note">The reply failed. </p>' in html_of(web.get("/chat/talk/"))


def test_a_failure_has_the_same_text_live_and_after_a_reload():
    script = Path(finders.find("chatmemory/element/chat-words.js")).read_text(encoding="utf-8")
    texts = script.partition("errors: {")[2].partition("}")[0]
    assert dict(re.findall(r'(\w+): _\(\s*"(.*)",?\s*\),', texts)) == FAILURES
    ours = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert {kind.code for kind in ours if issubclass(kind, ModelError)} <= FAILURES.keys()


def test_a_long_message_is_truncated_with_a_link_to_the_whole(web, ann):
    talk(ann, "hi", "x" * (MAX_TEXT_CHARS + 1) + "<end>")
    page = html_of(web.get("/chat/talk/"))
    assert "end&gt;" not in page
    assert 'href="/chat/talk/2/"' in page
    whole = web.get("/chat/talk/2/")
    assert whole["Content-Type"] == "text/plain; charset=utf-8"
    assert whole["X-Content-Type-Options"] == "nosniff"
    assert whole.content.decode().endswith("x<end>")


@pytest.mark.parametrize("path", ["unknown/", "talk/0/", "talk/3/", f"talk/{'9' * 30}/"])
def test_the_page_of_an_unknown_chat_or_message_states_it(web, ann, path):
    talk(ann, "hi", "hello")
    response = web.get(f"/chat/{path}")
    assert response.status_code == 404
    assert "This chat or message does not exist." in html_of(response)


def test_rows_below_the_floor_are_not_shown(web, ann):
    talk(ann, "below", "too", "shown", "also")
    Session.objects.update(first_seq=3)
    assert "below" not in html_of(web.get("/chat/talk/"))
    assert "below" not in html_of(web.get("/chat/~all/"))
    assert web.get("/chat/talk/1/").status_code == 404


@pytest.mark.slow
def test_a_page_of_large_replies_is_bounded(web, ann):
    texts = [text for _ in range(25) for text in ("q", "*a*" * 9_999)]
    talk(ann, *texts)
    started = time.monotonic()
    page = html_of(web.get("/chat/talk/"))
    assert time.monotonic() - started < 20
    assert page.count(" data-html") == RENDERED_CHARS // len(texts[1])


@pytest.mark.regression
def test_a_page_spends_bounded_time_on_markdown(web, ann, monkeypatch):
    talk(ann, *("q", "*a*") * 5)
    monkeypatch.setattr(budget, "PERSON_SECONDS", 0.0)
    assert html_of(web.get("/chat/talk/")).count("<p>*a*</p>") == 5
    answer = web.get("/chat/talk/html/").json()
    assert {message["html"] for message in answer["messages"]} == {"<p>*a*</p>\n"}


def test_rendered_replies_are_selected_by_seq(web, ann):
    talk(ann, "q *1*", "a *1*", "q", "plain", "q", "a *3*", "q", "a *4*")
    answer = web.get("/chat/talk/html/?after=2&before=8").json()
    assert answer == {
        "messages": [{"seq": 6, "revision": 0, "html": "<p>a <em>3</em></p>\n"}],
        "upto": 7,
    }


@pytest.mark.slow
def test_a_response_of_rendered_replies_is_limited_and_states_its_last_seq(web, ann):
    talk(ann, *("q", "*a*" * 9_999) * 5)
    answer = web.get("/chat/talk/html/").json()
    assert [message["seq"] for message in answer["messages"]] == [2, 4, 6]
    assert answer["upto"] == 7
    rest = web.get(f"/chat/talk/html/?after={answer['upto']}").json()
    assert [message["seq"] for message in rest["messages"]] == [8, 10]


def test_the_footnotes_of_two_messages_have_different_ids(web, ann):
    talk(ann, *("q", "a[^1]\n\n[^1]: b") * 2)
    found = web.get("/chat/talk/html/").json()["messages"]
    assert ['id="m2-fn1"' in found[0]["html"], 'id="m4-fn1"' in found[1]["html"]] == [True, True]
    page = html_of(web.get("/chat/talk/"))
    assert page.count('id="m2-fn1"') == page.count('id="m4-fn1"') == 1


def test_the_policy_allows_the_origins_of_images(web, ann):
    talk(ann, "q", "![a](https://images.example/a.png)")
    assert "img-src" not in web.get("/chat/talk/")["Content-Security-Policy"]
    with override_settings(CHATMEMORY={"IMAGE_ORIGINS": ["https://images.example"]}):
        response = web.get("/chat/talk/")
    assert "<img src=" in html_of(response)
    sent = response["Content-Security-Policy"].split("; ")
    assert "img-src 'self' https://images.example" in sent


@pytest.mark.regression
@override_settings(
    STATIC_URL="https://cdn.example/static/",
    CHATMEMORY={"ASSET_ORIGINS": ["https://fonts.example"]},
)
def test_the_policy_allows_the_origins_of_static_files_and_of_the_setting(web, ann):
    origins = "'self' https://cdn.example https://fonts.example"
    for path in ("/chat/talk/", "/accounts/login/"):
        sent = web.get(path)["Content-Security-Policy"].split("; ")
        assert {f"{name}-src {origins}" for name in ("default", "script", "connect")} <= {*sent}
        assert "base-uri 'none'" in sent


@pytest.mark.parametrize("query", ["after=x", "after=-1", "before=1.5", "after=" + "9" * 30])
def test_a_wrong_number_is_refused(web, ann, query):
    talk(ann, "hi", "hello")
    assert web.get(f"/chat/talk/html/?{query}").status_code == 400


def test_a_page_needs_six_queries(web, ann, django_assert_num_queries):
    talk(ann, *("hi", "hello *you*") * 10)
    with django_assert_num_queries(6):  # the login's two, the messages, and three of the list
        web.get("/chat/talk/")


@pytest.mark.parametrize(
    "path", ["/", "/accounts/login/", "/chat/~all/", "/chat/talk/", "/chat/none/"]
)
def test_no_page_has_inline_code(web, ann, path):
    talk(ann, *(payload for payload in PAYLOADS for _ in ("question", "answer")))
    page = Tags(html_of(web.get(path)))
    assert page.found
    assert page.inline.strip() == ""
    for tag, attributes in page.found:
        assert tag != "style"
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "action"):
            assert ELSEWHERE not in (attributes.get(name) or "") or tag == "a"


@pytest.mark.parametrize("path", ["", "~all/", "talk/", "talk/html/", "talk/1/", "~new/", "none/"])
def test_our_pages_send_their_policy_and_are_not_stored(web, ann, path):
    talk(ann, "hi", "hello")
    response = web.get(f"/chat/{path}")
    sent = response["Content-Security-Policy"].split("; ")
    assert {"default-src 'self'", "script-src 'self'", "base-uri 'none'"} <= {*sent}
    assert "frame-ancestors 'none'" in sent  # a question in a frame could be clicked unseen
    assert "no-store" in response["Cache-Control"]


def test_a_sign_out_is_a_post(web):
    page = html_of(web.get("/chat/~all/"))
    assert '<form id="cm-sign-out" method="post" action="/accounts/logout/">' in page
    assert web.get("/accounts/logout/").status_code == 405


@pytest.mark.django_db
def test_the_project_has_its_own_error_pages():
    response = Client().get("/nowhere/")
    assert response.status_code == 404
    assert "This page does not exist." in html_of(response)


def test_operators_find_the_admin(web, ann):
    assert "/admin/" not in html_of(web.get("/chat/~all/"))
    ann.is_staff = True
    ann.save()
    assert 'href="/admin/"' in html_of(web.get("/chat/~all/"))


@pytest.mark.regression
def test_only_staff_users_see_details_for_operators(web, ann):
    assert " details" not in html_of(web.get(f"/chat/{uuid.uuid4()}/"))
    ann.is_staff = True
    ann.save()
    assert " details>" in html_of(web.get(f"/chat/{uuid.uuid4()}/"))


def test_the_pages_have_the_documented_names():
    text = (ROOT / "docs/howto/chat-page.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| `([\w-]+)` \|", text, re.MULTILINE)
    assert len(rows) == 7
    for address, name in rows:
        args = ["a"] if "<key>" in address else []
        end = address.strip('"').replace("<key>", "a")
        assert reverse(f"chatmemory:{name}", args=args) == f"/chat/{end}"
