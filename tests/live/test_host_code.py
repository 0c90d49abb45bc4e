"""The host's functions that settings name use the database after its connections were lost."""

from __future__ import annotations

import ast
import asyncio
import inspect
import threading
from collections import UserDict
from itertools import pairwise
from queue import Queue
from unittest.mock import patch

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection
from langchain_core.runnables import RunnableLambda

from chatmemory import conf, services, signals
from chatmemory.access import logins, rates
from chatmemory.access.logins import Login
from chatmemory.consumers.logins import login_of
from chatmemory.consumers.origins import ais_allowed_origin
from chatmemory.database import host_code
from chatmemory.database.after_commit import is_everything_delivered
from chatmemory.database.host_code import HostExecutor
from chatmemory.database.pool import in_pool
from chatmemory.live import titles
from chatmemory.live.runner import runner
from chatmemory.models import Message, Session, Turn
from tests.factories import TALK, make_session
from tests.locking import second_connection
from tests.servers import (
    DEADLINE,
    Tab,
    connected,
    live_process,
    person_with_talk,
    sign_in,
    wait_for,
)

User = get_user_model()

ann = person_with_talk
live = live_process

CALLS: list[int] = []
"""The connections in which the functions below have queried, newest last."""


class Persistent:
    """Whether the connection stays open, as with CONN_MAX_AGE None; only those of these functions,
    so that no other test gets one that was lost."""

    is_on = False


def query(*_):
    count = User.objects.count()
    CALLS.append(_connection_id())
    return count


async def aquery(*_):
    await User.objects.acount()
    CALLS.append(await sync_to_async(_connection_id)())


def _connection_id():
    is_persistent = Persistent.is_on and threading.current_thread() is not threading.main_thread()
    connection.close_at = None if is_persistent else 0
    if connection.vendor == "sqlite":
        return id(connection.connection)
    if connection.vendor == "postgresql":
        return connection.connection.info.backend_pid
    if is_persistent:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION wait_timeout = 1")
    return connection.connection.thread_id()


async def generator(messages, session):
    await aquery()
    yield "Hello."


async def generator_with_thread(messages, session):
    yield str(await asyncio.to_thread(query))


chain = RunnableLambda[object, str](lambda given: str(query()))


async def afactory(session):
    await aquery()
    return echo


def factory(session):
    query()
    return echo


async def failing(messages, session):
    yield "So far, "
    raise LookupError(f"no order {messages[-1]['content']}")


def failing_factory(session):
    raise LookupError(f"no bot for {session.key}")


class APIStatusError(Exception):
    """As a generated client of a provider raises it."""


async def of_provider(messages, session):
    yield "So far, "
    raise APIStatusError("no")


class Mute(Exception):
    """An error whose text and attributes cannot be read, as of a class with a fault."""

    def __str__(self):
        raise TypeError("no text")

    @property
    def status_code(self):
        raise LookupError("no status")

    response = code = operation_name = status_code


class MuteAPIStatusError(Mute, APIStatusError):
    """The same, raised by a provider's client."""


async def mute(messages, session):
    yield "So far, "
    raise Mute


async def mute_of_provider(messages, session):
    yield "So far, "
    raise MuteAPIStatusError


async def echo(messages, session):
    yield "Hello."


def title(messages, session):
    return f"Title {query()}"


async def atitle(messages, session):
    await aquery()
    return "Title"


def instructions(session):
    return f"Prompt {query()}"


async def ainstructions(session):
    await aquery()
    return "Prompt"


def before_send(by, sending):
    query()


async def abefore_send(by, sending):
    await aquery()


def gate(visit):
    query()


async def agate(visit):
    await aquery()


def limit(by):
    return 100 * query()


def new_session(by, asked):
    return {"title": f"Session {query()}"}


def socket_user(scope):
    query()
    return User.objects.get()


async def asocket_user(scope):
    await aquery()
    return await User.objects.aget()


class Embeds(UserDict):
    def values(self):
        query()
        return [["https://shop.example"]]


def run_turn(ann):
    """Run a turn, and whatever follows it."""
    client_id = f"c{Turn.objects.count()}"
    Session.objects.update(title="")  # the function of TITLE is called for the first turns
    runner.enable()
    admitted = services.admit_turn(
        **ann.talk, client_id=client_id, content="hi", owner=runner.owner
    )
    runner.launch(admitted.claim)
    turn = Turn.objects.filter(client_id=client_id, ended_at__isnull=False)
    wait_for(turn.exists, "the turn does not end")
    # Its title is given by a task that the end of the turn has submitted.
    runner._thread.submit(asyncio.sleep(0)).result(DEADLINE)
    wait_for(lambda: not runner._thread._tasks, "a task does not end")


def open_socket(ann):
    in_loop(login_of({"type": "websocket", "headers": []}))


def open_socket_of_session(ann):
    cookie = f"{settings.SESSION_COOKIE_NAME}={ann.cookie}".encode()
    in_loop(login_of({"type": "websocket", "headers": [(b"cookie", cookie)]}))


def check_login(ann):
    in_loop(in_pool(logins.check_login)(Login.of(ann.user)))


def send(ann):
    in_loop(in_pool(rates.check_rate)(services.Actor.user(ann.user)))


def read(ann):
    in_loop(in_pool(rates.check_reads)(services.Actor.user(ann.user)))


def write(ann):
    in_loop(in_pool(rates.check_writes)(services.Actor.user(ann.user)))


def open_new_session(ann):
    key = f"new{Session.objects.count()}"
    in_loop(in_pool(services.open_session)(session_key=key, by=services.Actor.user(ann.user)))


def admit(ann):
    client_id = f"a{Turn.objects.count()}"
    in_loop(services.aadmit_turn(**ann.talk, client_id=client_id, content="hi"))


def open_from_embed(ann):
    headers = [(b"host", b"testserver"), (b"origin", b"https://shop.example")]
    in_loop(ais_allowed_origin({"headers": headers}, may_be_embed=True))


def in_loop(work):
    """Await in another loop than that of the test, whose thread has the test's own connection."""
    runner._thread.submit(work).exception(DEADLINE)


CASES = [
    ("RESPONDER", "generator", run_turn),
    ("RESPONDER", "generator_with_thread", run_turn),
    ("RESPONDER", "chain", run_turn),
    ("RESPONDER", "afactory", run_turn),
    ("RESPONDER", "factory", run_turn),
    ("TITLE", "title", run_turn),
    ("TITLE", "atitle", run_turn),
    ("INSTRUCTIONS_FOR", "instructions", run_turn),
    ("INSTRUCTIONS_FOR", "ainstructions", run_turn),
    ("NEW_SESSION", "new_session", open_new_session),
    ("BEFORE_SEND", "before_send", admit),
    ("BEFORE_SEND", "abefore_send", admit),
    ("TOKEN_COUNTER", "query", run_turn),
    ("GATE", "gate", open_socket_of_session),
    ("GATE", "agate", open_socket_of_session),
    ("IMPERSONATOR", "gate", open_socket_of_session),
    ("IMPERSONATOR", "agate", open_socket_of_session),
    ("REACH", "query", check_login),
    ("SENDS_PER_MINUTE", "limit", send),
    ("TOKENS_PER_DAY", "limit", send),
    ("READS_PER_MINUTE", "limit", read),
    ("WRITES_PER_MINUTE", "limit", write),
    ("MAX_SESSIONS_PER_USER", "limit", open_new_session),
    ("SOCKET_AUTH", "socket_user", open_socket),
    ("SOCKET_AUTH", "asocket_user", open_socket),
    ("VALID_LOGINS", "query", check_login),
    ("EMBEDS", "", open_from_embed),
]
OF_REQUESTS = {"API_AUTHENTICATION", "ERASURE_LIST"}
"""Called only in requests and commands, whose connections Django closes."""


@pytest.fixture
def _plain_connections(live, monkeypatch):
    """Let connections come from no pool, and titles from one thread, so that a lost one is used."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no connection that could be lost")
    connection.close()
    options = {**connection.settings_dict["OPTIONS"]}
    options.pop("pool", None)
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    monkeypatch.setattr(titles, "_threads", HostExecutor(1, name="titles"))
    yield
    wait_for(is_everything_delivered, "a receiver still has such a connection")
    connection.close()


@pytest.mark.database
@pytest.mark.usefixtures("_plain_connections")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("setting", "name", "call"), CASES)
def test_a_function_of_the_host_can_query_after_its_connection_was_lost(
    ann, settings, setting, name, call
):
    value = f"{__name__}.{name}" if name else Embeds()
    settings.CHATMEMORY = {**settings.CHATMEMORY, setting: value, "DB_THREADS": 1, "LEASE": 2}
    CALLS.clear()
    with patch.object(Persistent, "is_on", True):
        call(ann)
        wait_for(lambda: bool(CALLS), "it is not called")  # a title is made after its turn
        lose_connection(CALLS[-1])
        call(ann)  # it may notice that the connection was lost, and fail
    CALLS.clear()
    call(ann)
    wait_for(lambda: bool(CALLS), "it is not called again")
    wait_for(lambda: is_closed(CALLS[-1]), "the connection stays open")


def answer(ann, settings, name):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{__name__}.{name}"}
    run_turn(ann)
    return Message.objects.get(role="assistant")


@pytest.mark.django_db(transaction=True)
def test_a_sync_factory_can_query(ann, live, settings):
    CALLS.clear()
    assert answer(ann, settings, "factory").text == "Hello."
    assert CALLS


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("failing", "responder_error"),
        ("failing_factory", "responder_error"),
        ("missing", "responder_error"),
        ("of_provider", "model_error"),
        ("mute", "responder_error"),
        ("mute_of_provider", "model_error"),
    ],
)
def test_an_error_of_the_hosts_code_has_its_own_code(ann, live, settings, name, code):
    User.objects.update(is_staff=True)
    assert answer(ann, settings, name).error == code
    assert Turn.objects.get().error == code


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_staff", [True, False])
def test_only_the_session_of_a_staff_member_shows_the_error_of_a_bot(ann, live, settings, is_staff):
    User.objects.update(is_staff=is_staff)
    shown = "\n\n```text\nLookupError: no order hi\n```\n" if is_staff else ""
    assert answer(ann, settings, "failing").text == f"So far, {shown}"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_staff", [True, False])
def test_a_missing_key_is_named_to_staff_alone(ann, live, settings, monkeypatch, is_staff):
    User.objects.update(is_staff=is_staff)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": "openai:gpt-5"}
    run_turn(ann)
    reply = Message.objects.get(role="assistant")
    assert reply.error == "model_access_denied"
    assert ("OPENAI_API_KEY" in reply.text) is is_staff


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_debug", [True, False])
def test_the_text_of_a_bots_error_is_logged_only_with_debug(ann, live, settings, caplog, is_debug):
    settings.DEBUG = is_debug
    answer(ann, settings, "failing")
    assert ("LookupError: no order hi" in caplog.text) is is_debug


@pytest.mark.django_db(transaction=True)
def test_the_template_of_the_log_names_the_class_and_the_function_of_the_host(
    ann, live, settings, caplog
):
    answer(ann, settings, "failing")
    [template] = [record.msg for record in caplog.records if "responder failed" in record.msg]
    assert template == f"turn %s: the responder failed: %s\nLookupError in {__name__}.failing"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["failing", "of_provider"])
def test_a_receiver_gets_the_exception_of_a_responder(ann, live, settings, name):
    received = Queue()

    def receive(error, client_id, session_pk, **_):
        received.put((type(error), client_id, session_pk, threading.current_thread().name))

    signals.responder_failed.connect(receive)
    try:
        answer(ann, settings, name)
        kind, *names = received.get(timeout=DEADLINE)
    finally:
        signals.responder_failed.disconnect(receive)
    assert kind is {"failing": LookupError, "of_provider": APIStatusError}[name]
    assert names == ["c0", Session.objects.get().pk, "chatmemory-signals_0"]


class Blocked:
    """Blocks the one thread of `sync_to_async`, as a slow call of the host's code does."""

    until = threading.Event()


async def blocking(messages, session):
    if messages[-1]["content"] == "block":
        yield "So far, "
        await sync_to_async(Blocked.until.wait)(DEADLINE)
    yield "Hello."


@pytest.mark.django_db(transaction=True)
def test_a_blocking_call_of_one_bot_does_not_delay_the_turn_of_another(ann, live, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{__name__}.blocking"}
    runner.enable()
    make_session()
    ended = Turn.objects.filter(ended_at__isnull=False).values_list("client_id", flat=True)
    try:
        launch(client_id="blocked", content="block", **TALK)
        wait_for(
            lambda: any(run.chars for run in runner._runs.values()), "the other turn does not start"
        )
        launch(client_id="c1", content="hi", **ann.talk)
        wait_for(ended.exists, "the turn waits for the other one")
        assert list(ended) == ["c1"]
    finally:
        Blocked.until.set()
    wait_for(lambda: ended.all().count() == 2, "the other turn does not end")


@pytest.mark.django_db
async def test_a_block_that_python_closes_outside_its_task_is_not_counted_as_open():
    """Otherwise the connections of the thread would not be closed any more when they are old."""
    before = host_code._blocks
    task = asyncio.ensure_future(use_connections(entered := asyncio.Event()))
    await entered.wait()
    assert host_code._blocks == before + 1
    task.get_coro().close()
    assert host_code._blocks == before
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.django_db
@pytest.mark.regression
async def test_a_block_that_ends_with_an_error_while_python_closes_it_awaits_nothing():
    before = host_code._blocks
    task = asyncio.ensure_future(use_connections(entered := asyncio.Event(), is_wrong=True))
    await entered.wait()
    with pytest.raises(ZeroDivisionError):
        task.get_coro().close()
    assert host_code._blocks == before
    task.cancel()
    await asyncio.wait([task])


async def use_connections(entered, is_wrong=False):
    async with host_code.fresh_connections():
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            if is_wrong:
                raise ZeroDivisionError


def launch(**message):
    runner.launch(services.admit_turn(**message, owner=runner.owner).claim)


@pytest.mark.django_db(transaction=True)
async def test_a_run_for_which_a_view_waits_can_query(ann, live, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{__name__}.generator"}
    turn = await sync_to_async(services.admit_turn)(**ann.talk, client_id="c1", content="hi")
    await sync_to_async(runner.run)(turn.session_pk)
    assert await Turn.objects.filter(status="complete").aexists()


def lose_connection(number):
    """Wait until this connection is lost: by a command, or by `wait_timeout`."""
    with second_connection() as other, other.cursor() as cursor:
        if other.vendor == "postgresql":
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [number])
    wait_for(lambda: is_closed(number), "the connection stays open")


def is_closed(number):
    query = {
        "postgresql": "SELECT 1 FROM pg_stat_activity WHERE pid = %s",
        "mysql": "SELECT 1 FROM information_schema.processlist WHERE id = %s",
    }
    with second_connection() as other, other.cursor() as cursor:
        cursor.execute(query[other.vendor], [number])
        return not cursor.fetchall()


@pytest.fixture
def rolled_back(db):
    """A signed-in user whose rows no other connection sees."""
    person = sign_in()
    make_session(owner=person.user)
    return person


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["generator_with_thread", "chain"])
def test_blocking_code_of_a_responder_sees_the_rows_of_a_test(rolled_back, settings, name):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{__name__}.{name}"}
    admitted = services.admit_turn(**rolled_back.talk, client_id="c1", content="hi")
    runner.run(admitted.session_pk)
    assert Message.objects.get(role="assistant").text == "1"


@pytest.mark.django_db
async def test_blocking_code_of_a_socket_s_turn_sees_the_rows_of_a_test(rolled_back, settings):
    functions = {
        "RESPONDER": f"{__name__}.generator_with_thread",
        "TITLE": f"{__name__}.title",
        "SOCKET_AUTH": f"{__name__}.asocket_user",
    }
    settings.CHATMEMORY = {**settings.CHATMEMORY, **functions}
    async with connected(tab := Tab(rolled_back)):
        await tab.send("hi")
        assert (await tab.until("session", title="Title 1"))["last_seq"] == 2
        assert tab.texts() == ["hi", "1"]
    assert await asyncio.to_thread(threading.current_thread) is not threading.main_thread()


def test_each_setting_that_names_code_of_the_host_is_tested():
    [body] = [
        node.body
        for node in ast.parse(inspect.getsource(conf)).body
        if isinstance(node, ast.ClassDef) and node.name == "Settings"
    ]
    documented = {
        before.targets[0].id: ast.literal_eval(after.value)
        for before, after in pairwise(body)
        if isinstance(before, ast.Assign) and isinstance(after, ast.Expr)
    }
    hooks = ("dotted path", "mapping of its own")
    named = {
        name
        for name, text in documented.items()
        if any(words in " ".join(text.split()) for words in hooks)
    }
    assert named == {setting for setting, _, _ in CASES} | OF_REQUESTS
