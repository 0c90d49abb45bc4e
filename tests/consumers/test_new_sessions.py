"""What sockets and REST answer if the function of NEW_SESSION refuses or fails."""

from __future__ import annotations

import uuid

import pytest
from asgiref.sync import sync_to_async as db
from django.test import Client as Browser

from chatmemory.models import Session
from tests.servers import Tab, live_process, sign_in

pytestmark = pytest.mark.django_db(transaction=True)

live = live_process


@pytest.fixture
def ann(live):
    return sign_in()


@pytest.fixture
def select(settings):
    def select(name):
        path = f"tests.new_sessions_for_tests.{name}"
        settings.CHATMEMORY = {**settings.CHATMEMORY, "NEW_SESSION": path}

    return select


async def test_a_socket_ends_with_the_sentence_of_the_host(ann, select):
    select("refusing")
    async with Tab(ann, str(uuid.uuid4())) as tab:
        await tab.send_frame("hello", v=1, create=True)
        bye, code = await tab.closed()
    error = tab.frames[0]
    assert (error["code"], error["message"]) == ("forbidden", "Your plan has no chat.")
    assert (bye["reason"], code) == ("forbidden", 4403)
    assert not await db(Session.objects.exists)()


async def test_a_socket_whose_session_fails_gets_internal(ann, select):
    select("failing")
    async with Tab(ann, str(uuid.uuid4())) as tab:
        await tab.send_frame("hello", v=1, create=True)
        error = await tab.next()
    assert error["code"] == "internal"
    assert "no plan" not in str(error)
    assert not await db(Session.objects.exists)()


@pytest.mark.parametrize(("name", "status"), [("refusing", 403), ("failing", 500)])
def test_rest_answers_with_the_error(ann, select, name, status):
    select(name)
    browser = Browser(raise_request_exception=False)
    browser.force_login(ann.user)
    given = {"key": str(uuid.uuid4())}
    answer = browser.post("/api/sessions/", given, content_type="application/json")
    assert answer.status_code == status
    code = {403: "forbidden", 500: "internal"}[status]
    assert answer.json()["code"] == code
    assert ("Your plan has no chat." in answer.json()["detail"]) is (status == 403)
    assert not Session.objects.exists()
