"""The REST client of JavaScript, in Node.js and a browser, against this project's server."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from playwright.sync_api import expect

from chatmemory import services
from chatmemory.api import answers
from chatmemory.api.operations import OPERATIONS
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.protocol.schema import class_schema
from chatmemory.search import requests as of_search
from chatmemory.services import Actor
from chatmemory.services.health import state as health_state
from chatmemory.services.health.probes import Probe
from tests import responders_for_tests
from tests.cutting import cutting
from tests.factories import make_messages, make_session, make_user
from tests.js.declared import STATIC, fields_of
from tests.servers import (
    DEADLINE,
    eventually,
    live_process,
    person_with_talk,
    serving,
    sign_in,
    start_servers,
    use_responder,
)

process = live_process
person = person_with_talk
serve = start_servers
TYPES = "client/rest-types.d.ts"
TOKEN = "a" * 32
ROOT = django_settings.BASE_DIR


# The declarations

ALL = {**OPERATIONS, **of_search.OPERATIONS}
DEFINED = {operation.name: operation for operation in ALL.values()}
SHAPES = [
    shape
    for operation in ALL.values()
    for shape in (operation.query, operation.body)
    if shape and shape.names
]
ANSWERS: set[Any] = {
    kind
    for operation in ALL.values()
    for kind, _ in operation.answers.values()
    if kind.__module__ in (answers.__name__, of_search.__name__)
} | {
    answers.Problem,
    answers.RemovedSession,
    answers.SessionHead,
    answers.Version,
    answers.LiveTurn,
    of_search.FoundMessage,
}


def camel(name: str) -> str:
    return re.sub("_(.)", lambda found: found[1].upper(), name)


@pytest.mark.parametrize("name", DEFINED)
def test_each_operation_is_a_method(name):
    script = (STATIC / "client/chatmemory-rest.js").read_text(encoding="utf-8")
    assert re.search(rf"^  (async )?{camel(name)}\(", script, re.MULTILINE)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.kind.__name__)
def test_each_query_and_body_has_the_fields_of_the_api(shape):
    assert {*fields_of(shape.kind.__name__, TYPES)} == shape.names


def test_a_message_has_the_fields_of_its_frame_and_html():
    names = {*class_schema(answers.Message, {})["properties"]}
    assert names == {*fields_of("MessageFrame")} - {"type"} | {"html"}


@pytest.mark.parametrize("kind", sorted(ANSWERS - {answers.Message}, key=str))
def test_each_answer_has_the_fields_of_the_api(kind):
    declared = fields_of(kind.__name__, TYPES)
    schema = class_schema(kind, {})
    assert {*declared} == {*schema["properties"]}
    if kind is not answers.Problem:  # those that the client makes have fewer fields
        assert {name for name, is_required in declared.items() if is_required} == {
            *schema["required"]
        }


def test_each_option_is_documented():
    page = (ROOT / "docs/howto/client-js.md").read_text(encoding="utf-8")
    table = page.partition("| option of `new RestClient(url, options)`")[2].partition("\n\n")[0]
    documented = {
        name
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    }
    assert documented == {*fields_of("RestOptions", TYPES)}


# Against a server


@pytest.fixture
def ann(process, settings):
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "READS_PER_MINUTE": None,
        "WRITES_PER_MINUTE": None,
    }
    ann = sign_in(make_user("ann"))
    make_session(owner=ann.user)
    services.append_messages(**ann.talk, messages=make_messages("hi", "hello"))
    return ann


async def call(node: str, address: str, person: Any, *calls: Any, **options: Any) -> list[Any]:
    """Make these calls of the client, each a name with its arguments; return their results."""
    login = f"{django_settings.SESSION_COOKIE_NAME}={person.cookie}; csrftoken={TOKEN}"
    headers = {"Cookie": login, "X-CSRFToken": TOKEN}
    given = {"url": f"{address}/api/", "options": {"headers": headers, **options}, "calls": calls}
    process = await asyncio.create_subprocess_exec(
        *(node, "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON", ROOT / "tests/js/rest_calls.js"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(2 * DEADLINE):
        out, _ = await process.communicate(json.dumps(given).encode())
    assert process.returncode == 0
    results: list[Any] = json.loads(out)
    return results


@asynccontextmanager
async def calling(node: str, person: Any, **options: Any) -> Any:
    """Serve the project; yield a function that makes calls."""
    async with serving() as address:

        async def run(*calls: Any) -> list[Any]:
            return await call(node, address, person, *calls, **options)

        yield run


@pytest.mark.slow
async def test_sessions_are_opened_changed_purged_and_restored(ann, node):
    key = str(uuid.uuid4())
    async with calling(node, ann, pageSize=1) as run:
        opened, again, renamed, archived, opened_again, pinned, one, other, purged = await run(
            ["openSession", {"key": key, "title": "A kettle"}],
            ["openSession", {"key": key}],
            ["updateSession", key, {"title": "A pot", "expect_revision": 0}],
            ["archiveSession", key],
            ["unarchiveSession", key],
            ["updateSession", key, {"pinned": True}],
            ["getSession", key],
            ["openSession"],
            ["purgeSession", key],
        )
        assert opened["title"] == again["title"] == "A kettle"
        assert (renamed["title"], archived["archived"]) == ("A pot", True)
        assert (opened_again["archived"], pinned["pinned"]) == (False, True)
        assert one == pinned
        stored = [
            session.key
            async for session in services.sessions_of(Actor.user(ann.user)).order_by("pk")
        ]
        assert stored == ["talk", other["key"]]
        page, removed, restored, found, filtered = await run(
            ["listRemoved"],
            ["removed"],
            ["restoreSession", purged["undo"]],
            ["sessions"],
            ["sessions", {"pinned": True, "title": "POT"}],
        )
    assert page["removed"] == removed
    assert [(each["undo"], each["key"]) for each in removed] == [(purged["undo"], key)]
    assert (restored["key"], restored["title"]) == (key, "A pot")
    assert [each["key"] for each in found] == ["talk", other["key"], key]
    assert [each["key"] for each in filtered] == [key]


@pytest.mark.slow
async def test_messages_are_sent_edited_rated_and_read_both_ways(ann, node):
    blocks = [{"type": "text", "text": "one"}]
    edit = {"text": "two", "replaces": 3, "expect_seq": 3, "client_id": "c2", "wait": True}
    async with calling(node, ann, pageSize=2) as run:
        sent, again, edited, rated, page, withdrawn, turn, live = await run(
            ["sendMessage", "talk", {"content": blocks, "client_id": "c1", "wait": 20}],
            ["sendMessage", "talk", {"content": blocks, "client_id": "c1"}],
            ["sendMessage", "talk", edit],
            ["setFeedback", "talk", "c2", {"value": -1, "reason": "short"}],
            ["listMessages", "talk", {"limit": 1}],
            ["withdrawFeedback", "talk", "c2"],
            ["getTurn", "talk", "c2"],
            ["listTurns", "talk"],
        )
        assert (sent["status"], sent["messages"][0]["text"]) == ("complete", "one ")
        assert (again["duplicate"], again["seq"]) == (True, 3)
        assert [message["text"] for message in edited["messages"]] == ["two "]
        assert (rated["value"], page["messages"][0]["feedback"]) == (-1, -1)
        assert (withdrawn["value"], turn["seqs"], live["turns"]) == (None, [5, 6], [])
        await db(services.append_messages)(**ann.talk, messages=make_messages("three"))
        up, rest, down, older, one, versions, missed = await run(
            ["messages", "talk"],
            ["messages", "talk", {"after": 4}],
            ["olderMessages", "talk"],
            ["olderMessages", "talk", {"before": 4}],
            ["getMessage", "talk", 7, {"html": True}],
            ["listVersions", "talk", 5],
            ["listMessages", "talk", {"cursor": page["cursor"]}],
        )
        found, refused = await run(
            ["searchMessages", {"query": "three", "session": "talk"}],
            ["searchMessages", {"query": "?"}],
        )
    assert [message["seq"] for message in up] == [1, 2, 3, 4, 5, 6, 7]
    assert [message["seq"] for message in rest] == [5, 6, 7]
    assert [message["seq"] for message in down] == [7, 6, 5, 4, 3, 2, 1]
    assert [message["seq"] for message in older] == [3, 2, 1]
    assert (one["text"], one["html"]) == ("three", "<p>three</p>\n")
    assert [each["seq"] for each in versions["versions"]] == [3, 5]
    assert [message["seq"] for message in missed["messages"]] == [6, 7]
    assert [(hit["seq"], hit["snippet"]) for hit in found["hits"]] == [(7, "three")]
    assert (refused["status"], refused["code"], refused["field"]) == (400, "empty", "query")
    assert await Message.objects.acount() == 7


@pytest.mark.slow
async def test_turns_are_stopped_and_cancelled(ann, node, settings, monkeypatch):
    monkeypatch.setattr("chatmemory.live.runner.runner.keeper.seconds", 0.1)
    use_responder(settings, "endless")
    async with calling(node, ann) as run:
        await run(
            ["sendMessage", "talk", {"text": "one", "client_id": "c1"}],
            ["sendMessage", "talk", {"text": "two", "client_id": "c2"}],
        )
        await eventually(responders_for_tests.BEGUN.is_set)
        listed, cancelled, stopped = await run(
            ["listTurns", "talk"], ["stopTurn", "talk", {"turn": "c2"}], ["stopTurn", "talk"]
        )
        await eventually(Turn.objects.filter(status="interrupted").exists)
    assert [each["turn"] for each in listed["turns"]] == ["c1", "c2"]
    assert cancelled == {"turn": "c2", "status": "cancelled"}
    assert stopped["turn"] == "c1"


@pytest.mark.slow
async def test_own_data_tickets_and_health(ann, node, settings, monkeypatch):
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "SELF_SERVICE": ["export", "erase"],
        "HEALTH_TOKEN": "secret",
    }
    async with calling(node, ann) as run:
        ticket, health, details, file, text, refused, receipt = await run(
            ["issueTicket"],
            ["getHealth"],
            ["getHealth", {"token": "secret"}],
            ["exportOwnData"],
            ["exportOwnData", {"format": "markdown"}],
            ["eraseOwnData", {"confirm": "bob"}],
            ["eraseOwnData", {"confirm": "ann"}],
        )
        monkeypatch.setattr(health_state, "stuck_turns", Probe(lambda: None))
        [unavailable] = await run(["getHealth"])
    assert unavailable == {"status": "unavailable"}
    assert ticket["protocols"] == ["chatmemory.v1", f"ticket.{ticket['ticket']}"]
    assert (health, details["database"]) == ({"status": "ok"}, True)
    assert [session["key"] for session in json.loads(file)] == ["talk"]
    assert "hello" in text
    assert (refused["status"], refused["field"]) == (400, "confirm")
    assert (receipt["sessions"], receipt["messages"]) == (1, 2)
    assert not await Session.objects.aexists()


@pytest.mark.slow
async def test_refusals_have_the_fields_of_their_problem(ann, node, settings):
    bob = await db(sign_in)()
    await db(make_session)("theirs", owner=bob.user)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WRITES_PER_MINUTE": 2}
    nobody = {"headers": {}}
    await db(services.admit_turn)(**ann.talk, client_id="c1", content="hi", owner="another")
    async with serving() as address:
        theirs, busy, conflict, long, late = await call(
            *(node, address, ann),
            ["getSession", "theirs"],
            ["sendMessage", "talk", {"text": "hi", "if_busy": "reject", "client_id": "c2"}],
            ["updateSession", "talk", {"title": "new", "expect_revision": 99}],
            ["updateSession", "talk", {"title": "x" * 201}],
            ["archiveSession", "talk"],
        )
        [unknown] = await call(node, address, ann, ["listSessions"], **nobody)
    assert (theirs["status"], theirs["code"], theirs["attempts"]) == (404, "not_found", 1)
    assert (busy["code"], busy["turn"], busy["retry_after"]) == ("busy", "c1", 2)
    assert (busy["client_id"], busy["retry"]) == ("c2", True)
    assert (conflict["status"], conflict["code"], conflict["retry"]) == (409, "conflict", False)
    assert (long["code"], long["field"], long["limit"]) == ("bad_field", "title", 200)
    assert (late["status"], late["code"], late["retry"]) == (429, "rate_limited", True)
    assert 0 < late["retry_after"] <= 60
    assert (unknown["status"], unknown["code"]) == (401, "unauthenticated")
    assert unknown["message"]


REPEATED: dict[str, Any] = {
    "openSession": [],
    "updateSession": ["talk", {"title": "new"}],
    "archiveSession": ["talk"],
    "purgeSession": ["talk"],
    "sendMessage": ["talk", {"text": "hi", "wait": 20}],
    "listSessions": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REPEATED)
async def test_a_call_is_repeated_after_a_cut_connection_and_stores_nothing_twice(ann, node, name):
    async with serving() as address, cutting(address) as proxy:
        proxy.drops = 1
        [answer] = await call(node, proxy.address, ann, [name, *REPEATED[name]])
        assert proxy.drops == 0
    assert "code" not in answer
    kinds: Any = (Session.objects, Message.stored, Turn.objects, AuditEntry.objects)
    assert [await kind.acount() for kind in kinds] == {
        "openSession": [2, 2, 0, 0],
        "archiveSession": [1, 2, 0, 1],
        "purgeSession": [1, 2, 0, 1],
        "sendMessage": [1, 4, 1, 0],
    }.get(name, [1, 2, 0, 0])
    if name == "purgeSession":
        [entry] = [entry async for entry in AuditEntry.objects.all()]
        assert answer["undo"] == entry.pk
        assert answer["until"]


SENT_ONCE: dict[str, Any] = {
    "restoreSession": lambda undo: [undo],
    "stopTurn": lambda undo: ["talk"],
    "eraseOwnData": lambda undo: [{"confirm": "ann"}],
    "exportOwnData": lambda undo: [],
    "getHealth": lambda undo: [],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SENT_ONCE)
async def test_a_call_whose_repeat_would_differ_is_sent_once(ann, node, settings, name):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": ["export", "erase"]}
    await db(make_session)("other", owner=ann.user)
    where = {**ann.talk, "session_key": "other"}
    undo = (await db(services.purge_session)(**where, reason="")).pk
    async with serving() as address, cutting(address) as proxy:
        proxy.drops = 1
        [error] = await call(node, proxy.address, ann, [name, *SENT_ONCE[name](undo)])
        assert len(proxy.requests) == 1
    assert (error["status"], error["code"], error["retry"]) == (0, "disconnected", True)


USE_EXAMPLE = """async () => {
    const {ask, rename, titles} = await import("/my-page.js");
    const old = {key: "talk", revision: 0};
    const renamed = [await rename(old, "mine"), await rename(old, "other")];
    return [await ask("Where is it?"), ...renamed.map(({title}) => title), await titles()];
}"""


@pytest.fixture
def open_page(person, serve, launch, chromium):
    """A function that opens a page of the user, to whom /my-page.js is an example of the guide."""

    def start(first, **changed):
        page_text = (ROOT / "docs/howto/client-js.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```js\n(.*?)^```", page_text, re.MULTILINE | re.DOTALL)
        [found] = [block for block in blocks if first in block]
        example = found.replace('"/chat/api/"', '"/api/"')  # the address in the tests' project
        assert example != found
        [server] = serve(**changed)
        context = launch(chromium).new_context()
        name = django_settings.SESSION_COOKIE_NAME
        context.add_cookies([{"name": name, "value": person.cookie, "url": server.address}])
        page = context.new_page()
        page.route(
            "**/my-page.js",
            lambda route: route.fulfill(body=example, content_type="text/javascript"),
        )
        page.goto(f"{server.address}/chat/")  # its form to sign out sets the CSRF cookie
        return page

    return start


@pytest.mark.browser
@pytest.mark.slow
def test_the_documented_example_works_in_a_page_with_the_cookies_of_its_user(open_page):
    texts = open_page("ApiError").evaluate(USE_EXAMPLE)
    assert texts == ["Where is it?", "mine", "mine", ["My order", "mine"]]


@pytest.mark.browser
@pytest.mark.slow
def test_the_first_example_shows_a_text_while_it_is_streamed(open_page):
    page = open_page("new ChatMemoryClient", RESPONDER="tests.responders_for_tests.endless")
    page.evaluate("""async () => {
        document.body.append(document.createElement("pre"));
        await import("/my-page.js");
    }""")
    shown = page.locator("pre").last
    expect(shown).to_have_text(re.compile(r"^user: Hello\n(word ){30}"), use_inner_text=True)
