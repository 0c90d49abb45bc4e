"""The log contains the classes and frames of errors, never their texts."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import transaction

from chatmemory import services
from chatmemory.database.pool import in_pool
from chatmemory.errors import ModelUnavailable
from chatmemory.live.runner import runner
from chatmemory.logs import (
    MAX_ERRORS,
    MAX_FRAMES,
    describe,
    forget_logged,
    log_loop_error,
    log_once,
)
from chatmemory.models import Turn
from tests.factories import make_session
from tests.servers import Tab, own_threads, sign_in, wait_for

CANARY = "sk-canary"


def caught(function, *args):
    with pytest.raises(BaseException) as info:  # noqa: PT011  # of any class
        function(*args)
    return info.value


def fail(text=CANARY):
    raise LookupError(text)


def test_an_error_is_described_by_its_class_and_frames():
    first, *frames = describe(caught(fail)).splitlines()
    assert first == "builtins.LookupError"
    assert frames[-1].endswith(" fail")
    assert all(__file__ in frame for frame in frames[1:])


@pytest.mark.parametrize("is_explicit", [True, False])
def test_the_causes_of_an_error_are_described_without_texts(is_explicit):
    def wrap():
        try:
            fail()
        except LookupError as error:
            if is_explicit:
                raise ModelUnavailable(CANARY) from error
            raise ModelUnavailable(CANARY)  # noqa: B904

    text = describe(caught(wrap))
    assert "chatmemory.errors.ModelUnavailable" in text
    assert "builtins.LookupError" in text
    assert CANARY not in text


@pytest.mark.regression
def test_an_error_suppressed_by_from_none_is_not_described():
    def hide():
        try:
            fail()
        except LookupError:
            raise TypeError(CANARY) from None

    text = describe(caught(hide))
    assert "builtins.TypeError" in text
    assert "LookupError" not in text


@pytest.mark.regression
def test_the_number_of_described_errors_is_limited():
    group = ExceptionGroup(CANARY, [LookupError(CANARY) for _ in range(MAX_ERRORS + 5)])
    assert len(describe(group).splitlines()) == MAX_ERRORS


@pytest.mark.regression
def test_a_report_of_a_loop_without_an_error_is_logged_with_only_its_message(log):
    log_loop_error(logging.getLogger(__name__), {"message": "odd", "task": CANARY})
    [record] = [record for record in log.records if record.name == __name__]
    assert record.getMessage() == "asyncio reported: odd"
    assert CANARY not in log.handler.format(record)


def test_each_error_of_a_group_is_described():
    group = ExceptionGroup(CANARY, [caught(fail), TypeError(CANARY)])
    text = describe(group)
    assert "LookupError" in text
    assert "TypeError" in text
    assert CANARY not in text


def test_circular_causes_and_deep_recursion_are_limited():
    first, second = LookupError(), TypeError()
    first.__cause__, second.__cause__ = second, first
    assert describe(first).splitlines() == ["builtins.LookupError", "builtins.TypeError"]

    def recurse():
        recurse()

    assert len(describe(caught(recurse)).splitlines()) == MAX_FRAMES + 1


def test_the_http_status_of_a_provider_is_described():
    class StatusError(Exception):
        status_code = 429

    assert describe(StatusError(CANARY)).endswith("StatusError (status 429)")
    StatusError.status_code = CANARY
    assert CANARY not in describe(StatusError())


def raising(*_, **__):
    raise RuntimeError(f"prompt and key {CANARY}") from ValueError(CANARY)


async def failing(messages, session):
    yield "So far"
    raising()


async def leaving_a_task_that_fails(messages, session):
    async def later():
        raising()

    task = asyncio.ensure_future(later())
    await asyncio.wait({task})
    del task
    gc.collect()
    yield "Done"


async def leaving_a_task_that_exits(messages, session):
    async def later():
        raise SystemExit(CANARY) from ValueError(CANARY)

    asyncio.ensure_future(later()).add_done_callback(asyncio.Task.exception)  # read
    yield "Done"


async def unable_to_connect(messages, session):
    yield "So far"
    raise ConnectionError(CANARY) from ValueError(CANARY)


async def endless(messages, session):
    yield "So far"
    await asyncio.Event().wait()


async def failing_while_it_is_closed(messages, session):
    try:
        yield "x" * 20
        yield "y"
    finally:
        raising()


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG)
    return caplog


def texts_of(caplog, expected):
    """Wait until the log contains `expected`; return the whole log."""
    wait_for(lambda: expected in "\n".join(map(caplog.handler.format, caplog.records)), "no log")
    return "\n".join(map(caplog.handler.format, caplog.records))


@pytest.fixture
def ann(transactional_db, settings):
    settings.CHATMEMORY = {"SENDS_PER_MINUTE": None, "MAX_REPLY_CHARS": 10}
    with own_threads():
        person = sign_in()
        make_session(owner=person.user)
        yield person


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("failing", "RuntimeError"),
        ("unable_to_connect", "ConnectionError"),
        ("leaving_a_task_that_fails", "RuntimeError"),
        ("leaving_a_task_that_exits", "SystemExit"),
        ("failing_while_it_is_closed", "RuntimeError"),
    ],
)
def test_an_error_of_a_responder_is_logged_without_its_text(ann, settings, log, name, error):
    launch(ann, settings, name)
    wait_for(lambda: Turn.objects.get().ended_at, "the turn does not end")
    found = texts_of(log, f"builtins.{error}")
    assert "builtins.ValueError" in found
    assert f"{__file__}:" in found
    assert CANARY not in found


def launch(person, settings, name):
    """Start a turn that this responder answers."""
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{__name__}.{name}"}
    runner.enable()
    talk = {**person.talk, "client_id": "c1", "content": CANARY}
    runner.launch(services.admit_turn(**talk, owner=runner.owner).claim)


@pytest.mark.slow
@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_a_setting_that_makes_the_keeper_fail_is_not_logged(ann, settings, log):
    launch(ann, settings, "endless")
    wait_for(lambda: Turn.objects.get().started_at, "the run does not start")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TURN_TIMEOUT": CANARY}
    found = texts_of(log, "the keeper failed")
    assert "builtins.ValueError" in found
    assert CANARY not in found


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
def test_an_error_at_the_end_of_a_turn_is_logged_without_its_text(ann, settings, log):
    launch(ann, settings, "endless")
    wait_for(lambda: any(run.chars for run in runner._runs.values()), "no text")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MAX_REPLY_CHARS": "many"}
    services.stop_turn(**ann.talk, turn="c1")
    found = texts_of(log, "is not stored; a sweep will end it")
    assert "builtins.TypeError" in found
    assert "not supported between" not in found


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("hook", ["SOCKET_AUTH", "REACH"])
async def test_an_error_of_a_hook_of_a_socket_is_logged_without_its_text(ann, settings, log, hook):
    settings.CHATMEMORY = {**settings.CHATMEMORY, hook: f"{__name__}.raising"}
    async with Tab(ann) as tab:
        await tab.send_frame("hello", v=1)
        await tab.until("error" if hook == "REACH" else "bye")
    found = texts_of(log, "builtins.RuntimeError")
    assert CANARY not in found


@pytest.mark.regression
@pytest.mark.django_db
def test_an_error_of_a_hook_of_the_api_is_logged_without_its_text(client, settings, log):
    client.force_login(sign_in().user)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "REACH": f"{__name__}.raising"}
    assert client.get("/api/sessions/").status_code == 500
    found = texts_of(log, "builtins.RuntimeError")
    assert CANARY not in found


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
async def test_an_error_of_the_hosts_middleware_is_logged_without_its_text(ann, log):
    tab = Tab(ann)
    put, failed = tab._outbox.put, []

    async def send(event):
        if event["type"] == "websocket.send" and not failed:
            failed.append(event)
            raising()
        await put(event)

    tab._outbox.put = send
    async with tab:
        await tab.send_frame("hello", v=1)
        assert (await tab.closed())[1] == 1011
    found = texts_of(log, "a socket's task failed")
    assert "builtins.RuntimeError" in found
    assert CANARY not in found


@pytest.mark.regression
@pytest.mark.django_db
async def test_an_error_of_a_robust_hook_in_a_hosts_test_is_logged_without_its_text(log):
    await in_pool(lambda: transaction.on_commit(raising, robust=True))()
    found = texts_of(log, "an on_commit hook failed")
    assert "builtins.RuntimeError" in found
    assert CANARY not in found


def test_what_threads_report_at_the_same_time_is_logged_once(caplog):
    forget_logged()
    logger = logging.getLogger("chatmemory.tests")

    class Slow(logging.Filter):
        def filter(self, record):
            time.sleep(0.05)
            return True

    slow = Slow()
    logger.addFilter(slow)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(4):
                threads.submit(log_once, logger, logging.WARNING, "the same")
    finally:
        logger.removeFilter(slow)
    assert caplog.messages.count("the same") == 1
