"""The log names errors and where they happened; it never repeats their texts."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from chatmemory import services
from chatmemory.errors import ModelUnavailable
from chatmemory.logs import MAX_FRAMES, describe
from chatmemory.models import Turn
from chatmemory.runner import runner
from tests.factories import make_session
from tests.servers import Tab, own_threads, sign_in, wait_for

CANARY = "sk-canary"


def caught(function, *args):
    with pytest.raises(BaseException) as info:  # noqa: PT011  # whatever it is
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
def test_the_errors_that_caused_it_are_described_without_texts(is_explicit):
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


def test_each_error_of_a_group_is_described():
    group = ExceptionGroup(CANARY, [caught(fail), TypeError(CANARY)])
    text = describe(group)
    assert "LookupError" in text
    assert "TypeError" in text
    assert CANARY not in text


def test_errors_that_cause_each_other_and_deep_recursion_have_an_end():
    first, second = LookupError(), TypeError()
    first.__cause__, second.__cause__ = second, first
    assert describe(first).splitlines() == ["builtins.LookupError", "builtins.TypeError"]

    def recurse():
        recurse()

    assert len(describe(caught(recurse)).splitlines()) == MAX_FRAMES + 1


def test_the_status_of_a_provider_is_shown():
    class StatusError(Exception):
        status_code = 429

    assert describe(StatusError(CANARY)).endswith("StatusError (status 429)")
    StatusError.status_code = CANARY
    assert CANARY not in describe(StatusError())


# What the host's own code raises, wherever the app calls it.


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
    """All that was logged, once something of it contains what is expected."""
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
    "name", ["failing", "leaving_a_task_that_fails", "failing_while_it_is_closed"]
)
def test_what_a_responder_raises_is_logged_without_its_text(ann, settings, log, name):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": f"{__name__}.{name}"}
    runner.enable()
    admitted = services.admit_turn(**ann.talk, client_id="c1", content=CANARY, owner=runner.owner)
    runner.launch(admitted.claim)
    wait_for(lambda: Turn.objects.get().ended_at, "the turn does not end")
    found = texts_of(log, "builtins.RuntimeError")
    assert "builtins.ValueError" in found
    assert f"{__file__}:" in found
    assert CANARY not in found


@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("hook", ["SOCKET_AUTH", "REACH"])
async def test_what_a_hook_of_a_socket_raises_is_logged_without_its_text(ann, settings, log, hook):
    settings.CHATMEMORY = {**settings.CHATMEMORY, hook: f"{__name__}.raising"}
    async with Tab(ann) as tab:
        await tab.say("hello", v=1)
        await tab.until("error" if hook == "REACH" else "bye")
    found = texts_of(log, "builtins.RuntimeError")
    assert CANARY not in found


@pytest.mark.regression
@pytest.mark.django_db
def test_what_a_hook_of_the_api_raises_is_logged_without_its_text(client, settings, log):
    client.force_login(sign_in().user)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "REACH": f"{__name__}.raising"}
    assert client.get("/api/sessions/").status_code == 500
    found = texts_of(log, "builtins.RuntimeError")
    assert CANARY not in found
