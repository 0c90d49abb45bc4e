"""The REST client, against this project's server and through a proxy that cuts connections."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings

from chatmemory import services
from chatmemory.api.operations import OPERATIONS
from chatmemory.client import ApiError, ClientError, RestClient, connect
from chatmemory.client import http as client
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.search.requests import OPERATIONS as OF_SEARCH
from chatmemory.services import Actor
from chatmemory.services.health import state as health_state
from chatmemory.services.health.probes import Probe
from tests import responders_for_tests
from tests.api.test_authentication import NameLogin
from tests.cutting import CuttingProxy, cutting
from tests.factories import make_messages, make_session, make_user
from tests.servers import DEADLINE, eventually, live_process, serving, sign_in, use_responder

process = live_process


class BearerLogin(NameLogin):
    """Accepts the name of a user as a bearer token."""

    keyword = "Bearer"


@pytest.fixture
def live(process, settings, monkeypatch):
    monkeypatch.setattr("chatmemory.client.pauses.FIRST_RETRY_SECONDS", 0.01)
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "READS_PER_MINUTE": None,
        "WRITES_PER_MINUTE": None,
    }


@pytest.fixture
def ann(live):
    person = sign_in(make_user("ann"))
    make_session(owner=person.user)
    services.append_messages(**person.talk, messages=make_messages("hi", "hello"))
    return person


def rest_client(address: str, person: Any, **options: Any) -> RestClient:
    cookies = {django_settings.SESSION_COOKIE_NAME: person.cookie}
    return RestClient(f"{address}/api/", cookies=cookies, trust_env=False, **options)


@asynccontextmanager
async def rest_of(person: Any, **options: Any) -> AsyncIterator[RestClient]:
    async with serving() as address, rest_client(address, person, **options) as rest:
        yield rest


@asynccontextmanager
async def cut_rest_of(
    person: Any, **options: Any
) -> AsyncIterator[tuple[RestClient, CuttingProxy]]:
    async with (
        serving() as address,
        cutting(address) as proxy,
        rest_client(proxy.address, person, **options) as rest,
    ):
        yield rest, proxy


async def all_of(entries: AsyncIterator[Any]) -> list[Any]:
    return [entry async for entry in entries]


async def refused(work: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        await work
    return error.value


# The operations of the API

DEFINED = {operation.name: operation for operation in {**OPERATIONS, **OF_SEARCH}.values()}


@pytest.mark.parametrize("name", DEFINED)
def test_each_operation_is_a_method_with_its_fields(name):
    parameters = {*inspect.signature(getattr(RestClient, name)).parameters}
    operation = DEFINED[name]
    for shape in (operation.query, operation.body):
        names = {field.name for field in shape.kind.__dataclass_fields__.values()} if shape else ()
        assert {*names} <= parameters


# Sessions


@pytest.mark.slow
async def test_sessions_are_opened_renamed_pinned_and_archived(ann):
    key = str(uuid.uuid4())
    async with rest_of(ann) as rest:
        opened = await rest.open_session(key, title="A kettle")
        assert (opened["key"], opened["title"], opened["messages"]) == (key, "A kettle", 0)
        assert (await rest.open_session(key))["title"] == "A kettle"
        revision = opened["revision"]
        renamed = await rest.update_session(key, title="A pot", expect_revision=revision)
        assert (await rest.update_session(key, pinned=True))["pinned"] is True
        assert (await rest.update_session(key, pinned=False))["pinned"] is False
        assert (await rest.update_session(key, title=""))["title"] == ""
        assert renamed["title"] == "A pot"
        assert (await rest.archive_session(key))["archived"] is True
        stored = await Session.objects.aget(key=key)
        assert stored.archived_at
        assert (await rest.unarchive_session(key))["archived"] is False
        assert (await rest.get_session(key))["archived"] is False
        other = await rest.open_session()
    assert await Session.objects.filter(key=other["key"]).aexists()


@pytest.mark.slow
async def test_a_session_is_purged_listed_and_restored(ann):
    async with rest_of(ann) as rest:
        purged = await rest.purge_session("talk")
        assert await all_of(rest.sessions()) == []
        [removed] = (await rest.list_removed())["removed"]
        assert (removed["undo"], removed["key"]) == (purged["undo"], "talk")
        assert (await rest.restore_session(purged["undo"]))["key"] == "talk"
        assert await all_of(rest.removed()) == []
    texts = [row.text async for row in Message.stored.order_by("seq")]
    assert texts == ["hi", "hello"]


@pytest.mark.slow
async def test_sessions_are_filtered_and_all_pages_are_read_in_order(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.client.rest.PAGE_SIZE", 2)
    keys = [f"s{n}" for n in range(5)]
    for key in keys:
        await db(make_session)(key, owner=ann.user, title=f"Number {key}")
    async with rest_of(ann) as rest:
        found = [session["key"] async for session in rest.sessions()]
        assert found == ["talk", *reversed(keys)]  # with messages first, then the newest
        await rest.update_session("s1", pinned=True)
        await rest.archive_session("s2")
        for filters, expected in [
            ({"pinned": True}, ["s1"]),
            ({"archived": True}, ["s2"]),
            ({"running": True}, []),
            ({"title": "number S3"}, ["s3"]),
            ({"archived": False, "title": "number"}, ["s4", "s3", "s1", "s0"]),
        ]:
            assert [each["key"] async for each in rest.sessions(**filters)] == expected
        page = await rest.list_sessions(limit=4)
        rest_of_them = await rest.list_sessions(cursor=page["next"])
        assert [each["key"] for each in page["sessions"] + rest_of_them["sessions"]] == found
        for key in ("s0", "s3", "s4"):
            await rest.purge_session(key)
        assert [each["key"] async for each in rest.removed()] == ["s4", "s3", "s0"]


@pytest.mark.slow
async def test_an_unchanged_answer_is_not_sent_again(ann):
    statuses: list[int] = []

    async def note(response: httpx.Response) -> None:
        statuses.append(response.status_code)

    async with rest_of(ann, event_hooks={"response": [note]}) as rest:
        for read in (rest.list_sessions, lambda: rest.list_messages("talk")):
            first = await read()
            again = await read()
            assert again == first
            again.clear()  # by the caller
            assert await read() == first
        assert statuses == [200, 304, 304] * 2
        await rest.update_session("talk", title="new")
        assert (await rest.list_sessions())["sessions"][0]["title"] == "new"
        await rest.list_sessions(limit=1)
    assert statuses[6:] == [200, 200, 200]


async def test_only_the_last_responses_are_kept(ann, monkeypatch):
    monkeypatch.setattr(client, "MAX_KNOWN", 3)
    async with rest_of(ann) as rest:
        for limit in (1, 2, 3, 1, 4):
            await rest.list_messages("talk", limit=limit)
        assert [address[-1] for address in rest._http._known] == ["3", "1", "4"]


# Messages and turns


@pytest.mark.slow
async def test_messages_are_found_page_by_page(ann):
    await db(services.append_messages)(**ann.talk, messages=make_messages("A kettle", "hi again"))
    async with rest_of(ann) as rest:
        first = await rest.search_messages("hi", limit=1)
        second = await rest.search_messages("hi", limit=1, cursor=first["cursor"])
        hits = first["hits"] + second["hits"]
        assert sorted((hit["session"], hit["seq"]) for hit in hits) == [("talk", 1), ("talk", 4)]
        of_users = await rest.search_messages("kettle hi", session="talk", role="user")
        assert {hit["seq"] for hit in of_users["hits"]} == {1, 3}
        error = await refused(rest.search_messages("kettle", session="other"))
        assert (error.status, error.code) == (404, "not_found")
        error = await refused(rest.search_messages("kettle", before="yesterday"))
        assert (error.code, error.field) == ("bad_field", "before")


@pytest.mark.slow
async def test_a_message_is_sent_with_and_without_waiting_and_edited(ann):
    async with rest_of(ann) as rest:
        sent = await rest.send_message("talk", "good morning", wait=20)
        assert (sent["status"], sent["seq"], sent["duplicate"]) == ("complete", 3, False)
        assert [message["text"] for message in sent["messages"]] == ["good morning "]
        blocks = [{"type": "text", "text": "and again"}]
        late = await rest.send_message("talk", content=blocks, client_id="c2")
        assert (late["turn"], late["status"] in ("waiting", "running", "complete")) == ("c2", True)
        again = await rest.send_message("talk", content=blocks, client_id="c2", wait=True)
        assert (again["duplicate"], again["status"]) == (True, "complete")
        edited = await rest.send_message(
            "talk", "good evening", replaces=3, expect_seq=5, if_busy="reject", wait=20
        )
        assert edited["messages"][0]["text"] == "good evening "
        versions = (await rest.list_versions("talk", edited["seq"]))["versions"]
        assert [(each["seq"], each["current"]) for each in versions] == [(3, False), (7, True)]
        assert (await rest.list_messages("talk"))["superseded"] == [[3, 6]]
        turn = await rest.get_turn("talk", "c2")
        assert (turn["status"], turn["seqs"]) == ("complete", [5, 6])
        assert (await rest.list_turns("talk"))["turns"] == []
        assert (await rest.get_message("talk", 8))["text"] == "good evening "
    assert await Message.objects.acount() == 8


@pytest.mark.slow
async def test_messages_are_read_both_ways_and_those_that_were_missed(ann, monkeypatch):
    monkeypatch.setattr("chatmemory.client.rest.PAGE_SIZE", 2)
    texts = [str(n) for n in range(3, 8)]
    await db(services.append_messages)(**ann.talk, messages=make_messages(*texts))
    async with rest_of(ann) as rest:
        seqs = [message["seq"] async for message in rest.messages("talk")]
        assert seqs == [1, 2, 3, 4, 5, 6, 7]
        assert [each["seq"] async for each in rest.messages("talk", after=4)] == [5, 6, 7]
        older = [each["seq"] async for each in rest.older_messages("talk")]
        assert older == seqs[::-1]
        assert [each["seq"] async for each in rest.older_messages("talk", before=4)] == [3, 2, 1]
        newest = await rest.list_messages("talk", before=6, limit=2)
        assert [each["seq"] for each in newest["messages"]] == [4, 5]
        cursor = (await rest.list_messages("talk"))["cursor"]
        await db(services.append_messages)(**ann.talk, messages=make_messages("8"))
        missed = await rest.list_messages("talk", cursor=cursor)
        assert ([each["text"] for each in missed["messages"]], missed["more"]) == (["8"], False)
        await db(services.trim_session)(**ann.talk, keep_last=0, reason="")
        assert await all_of(rest.messages("talk")) == []
        assert await all_of(rest.older_messages("talk")) == []


@pytest.mark.slow
async def test_turns_are_listed_stopped_and_cancelled(ann, settings, monkeypatch):
    monkeypatch.setattr("chatmemory.live.runner.runner.keeper.seconds", 0.1)
    use_responder(settings, "endless")
    async with rest_of(ann) as rest:
        running = (await rest.send_message("talk", "one"))["turn"]
        waiting = (await rest.send_message("talk", "two"))["turn"]
        await eventually(Turn.objects.filter(status="running").exists)
        listed = (await rest.list_turns("talk"))["turns"]
        assert [(each["turn"], each["text"]) for each in listed] == [
            (running, "one"),
            (waiting, "two"),
        ]
        stopped = await rest.stop_turn("talk", waiting)
        assert stopped == {"turn": waiting, "status": "cancelled"}
        assert (await rest.stop_turn("talk"))["turn"] == running
        await eventually(Turn.objects.filter(status="interrupted").exists)
        assert await rest.stop_turn("talk") == {"turn": None, "status": None}


@pytest.mark.slow
async def test_feedback_is_set_changed_and_withdrawn(ann):
    async def stored() -> list[int | None]:
        return [row["feedback"] for row in (await rest.list_messages("talk"))["messages"]]

    async with rest_of(ann) as rest:
        turn = (await rest.send_message("talk", "hi", wait=20))["turn"]
        given = await rest.set_feedback("talk", turn, -1, "too short")
        assert given == {"turn": turn, "value": -1, "reason": "too short"}
        assert (await stored())[-1] == -1
        assert (await rest.set_feedback("talk", turn, None))["value"] is None
        assert (await stored())[-1] is None
        await rest.set_feedback("talk", turn, 1)
        assert (await rest.withdraw_feedback("talk", turn))["value"] is None
        assert (await stored())[-1] is None


# Own data, tickets, health, logins


@pytest.mark.slow
async def test_own_data_is_exported_and_erased(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": ["export", "erase"]}
    async with rest_of(ann) as rest:
        file = b"".join(await all_of(rest.export_own_data()))
        assert [session["key"] for session in json.loads(file)] == ["talk"]
        text = b"".join(await all_of(rest.export_own_data("markdown"))).decode()
        assert "hello" in text
        wrong = await refused(rest.erase_own_data("bob"))
        assert (wrong.status, wrong.code, wrong.field) == (400, "bad_field", "confirm")
        receipt = await rest.erase_own_data("ann")
        assert (receipt["sessions"], receipt["messages"]) == (1, 2)
    assert not await Session.objects.aexists()


async def test_an_export_that_is_not_allowed_is_an_error(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": []}
    async with rest_of(ann) as rest:
        error = await refused(all_of(rest.export_own_data()))
    assert (error.status, error.code) == (403, "forbidden")


@pytest.mark.slow
async def test_a_token_logs_in_and_its_tickets_open_websockets(ann, settings):
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "API_AUTHENTICATION": ["tests.api.test_authentication.NameLogin"],
    }
    login = {"Authorization": "Name ann"}
    async with (
        serving() as address,
        RestClient(f"{address}/api", headers=login, trust_env=False) as rest,
        connect(f"{address}/ws/chat/talk/", ticket=rest.ticket, proxy=None) as chat,
    ):
        assert (await rest.issue_ticket())["protocols"][0] == "chatmemory.v1"
        assert (await chat.ask("one")).text == "one "
        assert (await rest.send_message("talk", "two", wait=20))["status"] == "complete"


@pytest.mark.slow
async def test_a_ticket_that_may_be_issued_later_is_an_os_error(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WRITES_PER_MINUTE": 1}
    async with rest_of(ann) as rest:
        await rest.ticket()
        with pytest.raises(OSError, match="rate_limited"):
            await rest.ticket()
    async with rest_of(ann, headers={"Cookie": "sessionid=wrong"}) as rest:
        with pytest.raises(ApiError, match="unauthenticated"):
            await rest.ticket()


async def test_health_needs_no_login_and_its_token_opens_the_details(ann, settings, monkeypatch):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "HEALTH_TOKEN": "secret"}
    async with rest_of(ann, headers={"Authorization": "Bearer of-ann"}) as rest:
        assert await rest.get_health() == {"status": "ok"}
        assert (await rest.get_health("secret"))["database"] is True
        assert (await refused(rest.get_health("wrong"))).code == "unauthenticated"
        monkeypatch.setattr(health_state, "stuck_turns", Probe(lambda: None))
        assert (await rest.get_health())["status"] == "unavailable"


async def test_a_write_over_https_passes_the_csrf_check_of_django(ann):
    from project.asgi import application

    def over_https(**options: Any) -> RestClient:
        transport = httpx.ASGITransport(app=application)
        return rest_client("https://127.0.0.1", ann, transport=transport, **options)

    async with over_https() as rest:
        assert (await rest.update_session("talk", title="new"))["title"] == "new"
    async with over_https(headers={"Origin": "https://other.example"}) as rest:
        assert (await refused(rest.archive_session("talk"))).code == "forbidden"


@pytest.mark.slow
async def test_the_documented_examples_work(ann, settings, capsys):
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "API_AUTHENTICATION": ["tests.client.test_rest.BearerLogin"],
    }
    page = (django_settings.BASE_DIR / "docs/howto/client.md").read_text()
    functions: dict[str, Any] = {}
    for example in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(compile(example, "docs/howto/client.md", "exec"), functions)  # noqa: S102  # our own page
    cookies = {django_settings.SESSION_COOKIE_NAME: ann.cookie}
    async with serving() as address, rest_client(address, ann) as rest:
        api, socket_url = f"{address}/api/", f"{address}/ws/chat/talk/"
        assert await functions["ask"](api, cookies) == "Where is my order? "
        await functions["export_text"](api, cookies)
        assert "# My order\nuser: Where is my order?" in capsys.readouterr().out
        old = await rest.get_session("talk")
        assert (await functions["rename"](rest, old, "mine"))["title"] == "mine"
        assert (await functions["rename"](rest, old, "other"))["title"] == "mine"
        assert await functions["with_token"](api, socket_url, "ann") == "Where is my order? "


# Errors


async def test_refusals_have_the_fields_of_their_problem(ann, settings):
    bob = await db(sign_in)()
    await db(make_session)("theirs", owner=bob.user)
    async with rest_of(ann) as rest:
        for key in ("theirs", "unknown", "", ".", "..", "talk/messages/1", "%"):
            error = await refused(rest.get_session(key))
            assert (error.status, error.code) == (404, "not_found"), key
        error = await refused(rest.get_turn("talk", ".."))
        assert (error.status, error.code) == (404, "not_found")
        error = await refused(rest.update_session("talk", title="new", expect_revision=99))
        assert (error.status, error.code, error.retry) == (409, "conflict", False)
        error = await refused(rest.update_session("talk", title="x" * 201))
        assert (error.status, error.code) == (400, "bad_field")
        assert (error.field, error.limit, error.attempts) == ("title", 200, 1)
        settings.CHATMEMORY = {**settings.CHATMEMORY, "WRITES_PER_MINUTE": 1}
        await rest.archive_session("talk")
        error = await refused(rest.archive_session("talk"))
        assert (error.status, error.code, error.retry) == (429, "rate_limited", True)
        assert 0 < error.retry_after <= 60
        assert isinstance(error, ClientError)
        assert error.message in str(error)


async def test_busy_names_its_turn_and_the_delay_and_the_message(ann):
    await db(services.admit_turn)(**ann.talk, client_id="c1", content="hi", owner="another")
    async with rest_of(ann) as rest:
        error = await refused(rest.send_message("talk", "hi", if_busy="reject"))
    assert (error.status, error.code, error.turn, error.retry) == (409, "busy", "c1", True)
    assert error.retry_after == 2  # of the header Retry-After
    assert error.client_id


@pytest.mark.slow
async def test_an_unknown_login_is_refused(ann):
    async with serving() as address:
        async with RestClient(f"{address}/api/", trust_env=False) as rest:
            error = await refused(rest.list_sessions())
            assert (error.status, error.code) == (401, "unauthenticated")
        async with RestClient(address, trust_env=False) as rest:  # a page, not the API
            error = await refused(rest.list_sessions())
            assert (error.status, error.code, error.retry) == (404, "bad_response", False)


@pytest.mark.parametrize("url", ["ftp://a.example/api/", "/api/", "https:///api/"])
def test_an_address_that_is_no_api_is_refused(url):
    with pytest.raises(ValueError, match="not the URL of a REST API"):
        RestClient(url)


# Lost connections


async def counts() -> list[int]:
    kinds: Any = (Session.objects, Message.stored, Turn.objects, AuditEntry.objects)
    return [await kind.acount() for kind in kinds]


async def renamed(rest: RestClient) -> Any:
    revision = (await rest.get_session("talk"))["revision"]
    return await rest.update_session("talk", title="new", expect_revision=revision)


REPEATED: dict[str, Any] = {
    "open_session": lambda rest: rest.open_session(),
    "update_session": lambda rest: renamed(rest),
    "archive_session": lambda rest: rest.archive_session("talk"),
    "purge_session": lambda rest: rest.purge_session("talk"),
    "send_message": lambda rest: rest.send_message("talk", "hi", wait=20),
    "stop_turn": lambda rest: rest.stop_turn("talk", "c0"),
    "set_feedback": lambda rest: rest.set_feedback("talk", "c0", 1),
    "list_sessions": lambda rest: rest.list_sessions(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REPEATED)
async def test_a_call_is_repeated_after_a_cut_connection_and_stores_nothing_twice(ann, name):
    call = REPEATED[name]
    async with cut_rest_of(ann) as (rest, proxy):
        await rest.send_message("talk", "hi", client_id="c0", wait=20)
        del proxy.requests[:]
        before = await counts()
        proxy.drops = 2
        answer = await call(rest)
        after = await counts()
        assert proxy.drops == 0
        [line] = {*proxy.requests[:3]}
    assert [new - old for old, new in zip(before, after, strict=True)] == {
        "open_session": [1, 0, 0, 0],
        "archive_session": [0, 0, 0, 1],
        "purge_session": [0, 0, 0, 1],
        "send_message": [0, 2, 1, 0],
    }.get(name, [0, 0, 0, 0])
    assert line.split()[0] in ("GET", "POST", "PATCH", "PUT", "DELETE")
    if name == "purge_session":
        [entry] = [entry async for entry in AuditEntry.objects.filter(action="purge")]
        assert answer["undo"] == entry.pk
        [removed] = await db(services.list_removed)(by=Actor.user(ann.user))
        assert answer["until"] == removed.until.isoformat()


SENT_ONCE: dict[str, Any] = {
    "restore_session": lambda rest, undo: rest.restore_session(undo),
    "stop_turn": lambda rest, undo: rest.stop_turn("talk"),
    "erase_own_data": lambda rest, undo: rest.erase_own_data("ann"),
    "export_own_data": lambda rest, undo: all_of(rest.export_own_data()),
    "get_health": lambda rest, undo: rest.get_health(),
}


@pytest.mark.parametrize("name", SENT_ONCE)
async def test_a_call_whose_repeat_would_differ_is_sent_once(ann, settings, name):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SELF_SERVICE": ["export", "erase"]}
    await db(make_session)("other", owner=ann.user)
    async with cut_rest_of(ann) as (rest, proxy):
        undo = (await rest.purge_session("other"))["undo"]
        del proxy.requests[:]
        proxy.drops = 1
        error = await refused(SENT_ONCE[name](rest, undo))
        assert len(proxy.requests) == 1
    assert (error.status, error.code, error.retry) == (0, "disconnected", True)


@pytest.mark.slow
async def test_repeats_are_bounded(ann):
    async with cut_rest_of(ann) as (rest, proxy):
        proxy.drops = 100
        error = await refused(rest.send_message("talk", "hi"))
        assert (error.code, error.attempts) == ("disconnected", 4)
        assert proxy.drops == 96
        proxy.drops = 0
        again = await rest.send_message("talk", "hi", client_id=error.client_id)
        assert again["duplicate"] is True
    assert await Turn.objects.acount() == 1


async def test_a_purged_session_that_never_existed_is_not_found(ann):
    async with cut_rest_of(ann) as (rest, proxy):
        proxy.drops = 1
        error = await refused(rest.purge_session("unknown"))
    assert (error.code, error.attempts) == ("not_found", 2)


async def test_a_server_that_does_not_answer_is_a_lost_connection(ann):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with rest_client(address, ann, timeout_seconds=0.05) as rest:
            error = await refused(rest.list_sessions())
    assert (error.code, error.attempts) == ("disconnected", 4)


@pytest.mark.slow
@pytest.mark.parametrize("wait", [DEADLINE, True])
async def test_the_timeout_begins_after_the_wait_for_the_reply(ann, settings, wait):
    use_responder(settings, "slow")
    async with cut_rest_of(ann, timeout_seconds=0.5) as (rest, proxy):
        sending = asyncio.ensure_future(rest.send_message("talk", "hi", wait=wait))
        # Not `eventually`, which would block the thread of the views.
        assert await asyncio.to_thread(responders_for_tests.BEGUN.wait, DEADLINE)
        await asyncio.sleep(1)
        responders_for_tests.GO.set()
        assert (await sending)["status"] == "complete"
    assert len(proxy.requests) == 1
