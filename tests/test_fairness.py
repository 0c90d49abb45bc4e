"""One person's requests keep no other person from theirs."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import pytest
from asgiref.sync import sync_to_async as db
from django.db import connection
from django.test import Client

from chatmemory.api import views
from chatmemory.models import Turn
from chatmemory.waits import RETRY_SECONDS, waits
from tests.conftest import database_environment
from tests.factories import make_session
from tests.rest import request
from tests.servers import Server, eventually, own_threads, sign_in

POOL = 10
"""Connections of the project's pool."""


@pytest.fixture
def ann(transactional_db):
    return sign_in()


@pytest.fixture
def bob(transactional_db):
    return sign_in()


@pytest.fixture
def serve(transactional_db, tmp_path):
    """Start a server with these settings."""
    begun = []

    def start(**options):
        begun.append(Server(database_environment(), tmp_path / f"{len(begun)}.log", **options))
        return begun[-1].start()

    yield start
    for server in begun:
        server.kill()


def running():
    return Turn.objects.filter(status=Turn.Status.RUNNING).count()


def browser_of(person):
    browser = Client()
    browser.force_login(person.user)
    return browser


def post(browser, key="talk", **fields):
    body = {"client_id": "c1", "text": "hi", **fields}
    address = f"/api/sessions/{key}/messages/"
    return browser.post(address, body, content_type="application/json")


# Requests that wait


@pytest.mark.regression
@pytest.mark.slow
async def test_requests_that_wait_for_replies_hold_no_connection_that_a_reader_needs(
    ann, bob, serve
):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no pool")
    server = serve()
    keys = [f"talk{n}" for n in range(2 * POOL)]
    for key in keys:
        await db(make_session)(key, owner=ann.user)
    waiters = [
        asyncio.ensure_future(
            request(
                server,
                ann,
                f"/api/sessions/{key}/messages/",
                {"client_id": "c1", "text": "count 100", "wait": 60},
            )
        )
        for key in keys
    ]
    await eventually(lambda: running() == len(keys), "not all turns began")
    began = time.monotonic()
    answers = [await request(server, bob, "/api/sessions/") for _ in range(5)]
    took = time.monotonic() - began
    assert not any(waiter.done() for waiter in waiters)
    assert [answer.status for answer in answers] == [200] * 5
    assert took < 5  # usually 0.3
    assert {answer.status for answer in await asyncio.gather(*waiters)} == {201}


@pytest.mark.regression
@pytest.mark.django_db
@pytest.mark.parametrize("limit", ["WAITS_PER_USER", "WAITS_PER_PROCESS"])
def test_one_more_request_that_waits_is_refused_and_stores_nothing(settings, limit):
    settings.CHATMEMORY = {**settings.CHATMEMORY, limit: 2}
    person = sign_in()
    make_session(owner=person.user)
    browser = browser_of(person)
    waiter = f"user:{person.user.pk}" if limit == "WAITS_PER_USER" else "user:other"
    with ExitStack() as slots:
        for _ in range(2):
            slots.enter_context(waits.slot(waiter))
        answer = post(browser, wait=1)
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
        assert answer["Retry-After"] == str(int(RETRY_SECONDS))
        assert not Turn.objects.exists()
        assert post(browser).status_code == 202
    assert post(browser, client_id="c2", wait=5).status_code == 201
    assert not waits._of_person


@pytest.mark.django_db
def test_a_request_that_waits_takes_no_slot_of_another_person(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "WAITS_PER_USER": 1}
    person = sign_in()
    make_session(owner=person.user)
    with waits.slot("user:other"):
        assert post(browser_of(person), wait=5).status_code == 201


@pytest.mark.regression
def test_a_request_that_waits_is_woken_by_the_end_of_its_turn(ann, monkeypatch):
    monkeypatch.setattr(views, "FIRST_LOOK_SECONDS", 60)
    make_session(owner=ann.user)
    with own_threads():
        began = time.monotonic()
        answer = post(browser_of(ann), wait=30)
        assert time.monotonic() - began < 15  # usually 0.5
    assert (answer.status_code, answer.json()["status"]) == (201, "complete")
    assert not waits._news
