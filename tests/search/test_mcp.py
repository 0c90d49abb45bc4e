"""The MCP server: its tools, whom it lets in, and what it reaches."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import httpx2
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from mcp.client import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from rest_framework_simplejwt.tokens import AccessToken

from chatmemory import services
from chatmemory.access import visitors
from chatmemory.errors import MemoryUnavailable
from chatmemory.models import AuditEntry
from chatmemory.search.lookups import Lookup
from chatmemory.services import Actor
from tests import servers
from tests.blocks import block_with
from tests.factories import make_user, make_visitor
from tests.impersonators_for_tests import IMPERSONATE
from tests.rest import CSRF_TOKEN

# The first call imports the SDK, which takes two seconds.
pytestmark = [pytest.mark.django_db, pytest.mark.slow]

start_servers = servers.start_servers

TEXTS = ("My passport number is K47.", "Thank you.", "The cabin is green.")


def talk(by, *texts, key="talk"):
    messages = [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(texts or TEXTS)
    ]
    services.append_messages(session_key=key, by=by, messages=messages, create=True)


@pytest.fixture
def ann():
    user = make_user("ann")
    talk(Actor.user(user))
    return user


@pytest.fixture
def browser(ann):
    """A client of Django's login, with its CSRF token."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(ann)
    client.cookies["csrftoken"] = CSRF_TOKEN
    client.defaults["HTTP_X_CSRFTOKEN"] = CSRF_TOKEN
    return client


def post(client, method, params=None, **headers):
    """Send one request as clients of the protocol do since 2025."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    return client.post(
        "/mcp/",
        json.dumps(message),
        content_type="application/json",
        headers={
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2025-11-25",
            **headers,
        },
    )


def call(client, name, *, headers=None, **arguments):
    """Return the result of a tool."""
    answer = post(client, "tools/call", {"name": name, "arguments": arguments}, **(headers or {}))
    assert answer.status_code == 200, answer.content
    return answer.json()["result"]


def text_of(result):
    (content,) = result["content"]
    return content["text"]


def test_messages_are_found_and_read(browser):
    found = text_of(call(browser, "search_memory", query="passports"))
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    assert f'Session "talk", message 1, user, {day} ' in found
    assert "> My passport number is K47." in found
    read = text_of(call(browser, "read_messages", session="talk", around=1))
    assert all(f"> {text}" in read for text in TEXTS)


def test_sessions_are_listed_by_title_and_in_pages(browser, ann):
    by = Actor.user(ann)
    for number in range(21):
        services.open_session(session_key=f"chat-{number}", by=by, title=f"Trip {number}")
    first = text_of(call(browser, "list_sessions", title="trip"))
    assert first.count("Session ") == 20
    cursor = first.rpartition("the cursor is ")[2]
    rest = text_of(call(browser, "list_sessions", title="trip", cursor=cursor))
    assert rest.startswith('Session "chat-0", title "Trip 0", messages 1 to 0, no message')
    whole = text_of(call(browser, "list_sessions"))
    assert 'Session "talk", title "My passport number is K47.", messages 1 to 3, last ' in whole
    assert text_of(call(browser, "list_sessions", title="none")) == "There is no session."


def test_no_schema_has_a_scope_or_a_person(browser):
    tools = post(browser, "tools/list").json()["result"]["tools"]
    names = {tool["name"]: {*tool["inputSchema"]["properties"]} for tool in tools}
    assert names == {
        "search_memory": {"query", "before", "after", "role", "session"},
        "read_messages": {"session", "around"},
        "list_sessions": {"title", "cursor"},
    }
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools)


def test_foreign_sessions_are_not_found(browser):
    bob = Actor.user(make_user("bob"))
    talk(bob, "The passport of Bob.", key="of-bob")
    more = {"scope": bob.owner, "user": bob.id, "by": bob.owner}  # ignored: no tool has them
    assert "Bob" not in text_of(call(browser, "search_memory", query="passport", **more))
    assert "of-bob" not in text_of(call(browser, "list_sessions", **more))
    for result in (
        call(browser, "search_memory", query="passport", session="of-bob"),
        call(browser, "read_messages", session="of-bob", around=1, **more),
    ):
        assert result["isError"]
        assert text_of(result) == "Error (not_found): Session not found."
        assert result["structuredContent"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("search_memory", {"query": ""}, "bad_field"),
        ("search_memory", {"query": "?"}, "empty"),
        ("search_memory", {"query": "a", "before": "May"}, "bad_field"),
        ("search_memory", {}, "bad_field"),
        ("read_messages", {"session": "talk", "around": "one"}, "bad_field"),
        ("read_messages", {"around": 1}, "bad_field"),
        ("list_sessions", {"cursor": "x"}, "bad_field"),
    ],
    ids=["no-query", "signs", "no-date", "missing", "no-number", "no-session", "cursor"],
)
def test_bad_input_is_an_error_of_the_tool_with_its_code(browser, name, arguments, code):
    result = call(browser, name, **arguments)
    assert result["isError"]
    assert result["structuredContent"]["code"] == code
    assert text_of(result).startswith(f"Error ({code}): ")


@pytest.mark.parametrize(
    ("error", "code"),
    [(MemoryUnavailable(), "unavailable"), (ValueError("secret"), "internal")],
    ids=["unavailable", "bug"],
)
def test_failures_are_errors_of_the_tool_without_their_words(browser, monkeypatch, error, code):
    def fail(self, **_):
        raise error

    monkeypatch.setattr(Lookup, "search", fail)
    result = call(browser, "search_memory", query="passport")
    assert result["structuredContent"]["code"] == code
    assert "secret" not in text_of(result)


def test_limits_of_searches_and_reads_count(browser, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SEARCHES_PER_MINUTE": 1, "READS_PER_MINUTE": 3}
    assert not call(browser, "search_memory", query="passport")["isError"]
    limited = call(browser, "search_memory", query="passport")
    assert limited["structuredContent"]["code"] == "rate_limited"
    post(browser, "ping")
    assert post(browser, "ping").status_code == 429


def test_an_unknown_tool_is_an_error_of_the_protocol(browser):
    answer = post(browser, "tools/call", {"name": "drop", "arguments": {}}).json()
    assert answer["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", -32700), (b"[]", -32600), (b'{"jsonrpc": "2.0", "id": 1, "method": "x"}', -32601)],
    ids=["no-json", "no-request", "unknown-method"],
)
def test_malformed_requests_are_errors_of_the_protocol(browser, body, code):
    answer = browser.post(
        "/mcp/", body, content_type="application/json", headers={"Accept": "application/json"}
    )
    assert answer.json()["error"]["code"] in (code, -32602)


def test_a_long_body_is_refused(browser):
    answer = post(browser, "ping", {"_meta": {"x": "y" * 300_000}})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("method", ["get", "delete", "put"])
def test_only_posts_are_allowed(browser, method):
    answer = getattr(browser, method)("/mcp/", headers={"Accept": "text/event-stream"})
    assert answer.status_code == 405
    assert "POST" in answer.headers["Allow"]


# Logins


def status_of(client, **headers):
    return post(client, "tools/list", **headers).status_code


def test_without_a_login_there_is_no_answer(db):
    answer = post(Client(), "tools/list")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"]


def test_a_token_of_the_host_is_enough(ann, settings):
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "API_AUTHENTICATION": ["rest_framework_simplejwt.authentication.JWTAuthentication"],
    }
    headers = {"Authorization": f"Bearer {AccessToken.for_user(ann)}"}
    found = call(Client(), "search_memory", query="passport", headers=headers)
    assert "K47" in text_of(found)
    assert status_of(Client(), Authorization="Bearer x") == 401


def test_a_login_of_the_browser_needs_the_csrf_token(browser):
    del browser.defaults["HTTP_X_CSRFTOKEN"]
    answer = post(browser, "tools/list")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://testserver"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 400),
        ({"Host": "evil.example"}, 400),
    ],
    ids=["own", "foreign", "null", "rebound", "foreign-host"],
)
def test_pages_of_other_origins_and_hosts_are_refused(ann, settings, headers, status):
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "API_AUTHENTICATION": ["rest_framework_simplejwt.authentication.JWTAuthentication"],
    }
    token = {"Authorization": f"Bearer {AccessToken.for_user(ann)}"}
    assert status_of(Client(), **token, **headers) == status


def test_a_visitor_reaches_only_their_own_chats(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True}
    guest = make_visitor()
    talk(guest.actor, "The passport of a guest.")
    client = Client(enforce_csrf_checks=True)
    client.cookies[visitors.COOKIE] = guest.token
    assert status_of(client) == 403
    client.cookies["csrftoken"] = CSRF_TOKEN
    client.defaults["HTTP_X_CSRFTOKEN"] = CSRF_TOKEN
    found = text_of(call(client, "search_memory", query="passport"))
    assert "of a guest" in found
    assert "K47" not in found
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": False}
    assert status_of(client) == 401


def test_a_disabled_user_and_an_ended_login_are_refused(browser, ann):
    assert status_of(browser) == 200
    browser.logout()
    browser.cookies["csrftoken"] = CSRF_TOKEN
    assert status_of(browser) == 401
    browser.force_login(ann)
    assert status_of(browser) == 200
    ann.is_active = False
    ann.save()
    assert status_of(browser) == 401


def test_gate_and_reach_of_the_host_are_asked(browser, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "GATE": "tests.gates_for_tests.second_factor"}
    answer = post(browser, "tools/list")
    assert (answer.status_code, answer.json()["code"]) == (403, "refused")
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "GATE": None,
        "REACH": "tests.search.test_mcp.none",
    }
    answer = post(browser, "tools/list")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def none(by):
    return False


def test_readings_in_the_name_of_a_person_are_recorded(ann, settings):
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "IMPERSONATOR": "tests.impersonators_for_tests.of_impersonate",
    }
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "tests.impersonators_for_tests.ImpersonateMiddleware",
    ]
    staff = make_user("staff", is_staff=True)
    client = Client()
    client.force_login(staff)
    session = client.session
    session[IMPERSONATE] = ann.pk
    session.save()
    talk(Actor.user(ann), "Another passport.", key="other")
    entries = AuditEntry.objects.filter(action="read", actor_kind="operator")
    call(client, "read_messages", session="other", around=1)
    assert [(entry.actor_id, entry.from_seq) for entry in entries] == [(str(staff.pk), 1)]
    assert "K47" in text_of(call(client, "search_memory", query="passport"))
    assert entries.all().count() == 2  # the other one is of the same hour
    assert {entry.actor_id for entry in entries.all()} == {str(staff.pk)}


def test_a_call_adds_no_statement_to_those_of_login_and_service(browser, ann):
    by = Actor.user(ann)
    call(browser, "search_memory", query="passport")  # the first one imports the SDK
    with CaptureQueriesContext(connection) as login:
        post(browser, "tools/list")
    with CaptureQueriesContext(connection) as service:
        Lookup(by=by).search("passport")
    with CaptureQueriesContext(connection) as both:
        call(browser, "search_memory", query="passport")
    assert len(both) == len(login) + len(service)


def test_the_line_of_the_page_serves_it(browser, settings):
    code = block_with("docs/howto/search.md", "memory_server").text
    urls = ModuleType("urls_of_the_page")
    urls.__dict__["urlpatterns"] = []
    exec(code, urls.__dict__)  # noqa: S102  # code of ours
    settings.ROOT_URLCONF = urls
    assert "K47" in text_of(call(browser, "search_memory", query="passport"))


# Over a network


@asynccontextmanager
async def opened(server, headers, *, mode):
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http,
        McpClient(
            streamable_http_client(f"{server.address}/mcp/", http_client=http), mode=mode
        ) as client,
    ):
        yield client


def headers_of(person):
    cookie = f"{django_settings.SESSION_COOKIE_NAME}={person.cookie}; csrftoken={CSRF_TOKEN}"
    return {"Cookie": cookie, "X-CSRFToken": CSRF_TOKEN}


@pytest.mark.django_db(transaction=True)
@servers.on_daphne_and_uvicorn
async def test_the_client_of_the_sdk_calls_all_tools(start_servers, program):
    person, other = [await sync_to_async(servers.sign_in)() for _ in range(2)]
    await sync_to_async(talk)(person.talk["by"])
    await sync_to_async(talk)(other.talk["by"], "A foreign passport.", key="foreign")
    [server] = await sync_to_async(start_servers)(1, program=program)
    for mode in ("legacy", "auto"):
        async with opened(server, headers_of(person), mode=mode) as client:
            tools = await client.list_tools()
            assert len(tools.tools) == 3
            found = await client.call_tool("search_memory", {"query": "passport"})
            assert "> My passport number is K47." in text(found)
            assert "foreign" not in text(found)
            read = await client.call_tool("read_messages", {"session": "talk", "around": 2})
            assert "> The cabin is green." in text(read)
            listed = await client.call_tool("list_sessions", {})
            assert 'Session "talk"' in text(listed)
            missing = await client.call_tool("read_messages", {"session": "foreign", "around": 1})
            assert missing.is_error
            assert missing.structured_content["code"] == "not_found"
    names: dict[str, Any] = {}
    exec(block_with("docs/howto/search.md", "async def search_chats").text, names)  # noqa: S102  # code of ours
    found = await names["search_chats"](f"{server.address}/mcp/", headers_of(person), "passport")
    assert "> My passport number is K47." in found
    with pytest.raises(BaseExceptionGroup):
        async with opened(server, {}, mode="legacy") as client:
            await client.list_tools()


def text(result: Any) -> str:
    (content,) = result.content
    return str(content.text)
