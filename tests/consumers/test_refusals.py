"""What sockets and REST answer if a function of the host refuses a message, or fails."""

from __future__ import annotations

import uuid

import pytest
from asgiref.sync import sync_to_async as db
from django.test import Client as Browser

from chatmemory.models import Message, Session, Turn
from tests.refusals_for_tests import SENTENCE
from tests.servers import Tab, connected, live_process, person_with_talk

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process


@pytest.fixture
def select(settings):
    def select(name, setting="BEFORE_SEND"):
        path = f"tests.refusals_for_tests.{name}"
        settings.CHATMEMORY = {**settings.CHATMEMORY, setting: path}

    return select


def post(ann, key="talk"):
    browser = Browser(raise_request_exception=False)
    browser.force_login(ann.user)
    given = {"text": "hi", "client_id": str(uuid.uuid4())}
    return browser.post(f"/api/sessions/{key}/messages/", given, content_type="application/json")


def refs(caplog):
    return [record for record in caplog.records if "LookupError" in record.getMessage()]


@pytest.mark.parametrize("name", ["refuse", "arefuse"])
async def test_a_socket_gets_the_sentence_and_stays_open(ann, live, settings, select, name):
    select(name)
    async with connected(tab := Tab(ann)):
        error = await tab.send("hi")
        assert (error["code"], error["reason"], error["retry"]) == ("refused", "plan", False)
        assert error["message"] == SENTENCE
        settings.CHATMEMORY = {**settings.CHATMEMORY, "BEFORE_SEND": None}
        assert (await tab.send("hi"))["type"] == "ok"


@pytest.mark.parametrize("name", ["refuse", "arefuse"])
def test_rest_answers_with_the_sentence(ann, live, select, name):
    select(name)
    answer = post(ann)
    assert answer.status_code == 403
    problem = answer.json()
    assert (problem["code"], problem["reason"], problem["detail"]) == ("refused", "plan", SENTENCE)
    assert not Turn.objects.exists()


LIMITS = ("SENDS_PER_MINUTE", "TOKENS_PER_DAY")


@pytest.mark.parametrize("setting", ["BEFORE_SEND", *LIMITS])
async def test_a_function_that_fails_is_internal_on_a_socket(ann, live, select, caplog, setting):
    select("fail_at_limit" if setting in LIMITS else "fail", setting)
    async with connected(tab := Tab(ann)):
        error = await tab.send("hi")
    assert (error["code"], "no plan" in str(error)) == ("internal", False)
    [record] = refs(caplog)
    assert error["ref"] in record.getMessage()
    assert not await db(Turn.objects.exists)()
    assert not await db(Message.objects.exists)()


@pytest.mark.parametrize("setting", ["BEFORE_SEND", *LIMITS])
def test_a_function_that_fails_is_internal_over_rest(ann, live, select, caplog, setting):
    select("fail_at_limit" if setting in LIMITS else "fail", setting)
    answer = post(ann)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    [record] = refs(caplog)
    assert answer.json()["ref"] in record.getMessage()
    assert not Turn.objects.exists()
    assert not Message.objects.exists()


@pytest.mark.parametrize("setting", ["READS_PER_MINUTE", "MAX_SESSIONS_PER_USER"])
def test_another_limit_that_fails_is_internal_over_rest(ann, live, select, caplog, setting):
    select("fail_at_limit", setting)
    browser = Browser(raise_request_exception=False)
    browser.force_login(ann.user)
    if setting == "READS_PER_MINUTE":
        answer = browser.get("/api/sessions/")
    else:
        given = {"key": str(uuid.uuid4())}
        answer = browser.post("/api/sessions/", given, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert len(refs(caplog)) == 1
    assert Session.objects.count() == 1
