"""Fixtures of the tests of the REST API."""

from __future__ import annotations

import pytest
from django.test import Client

from chatmemory.responders import demo
from tests.api.calls import talk_of
from tests.factories import make_user


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(demo, "PAUSE_SECONDS", 0)


@pytest.fixture
def ann():
    return make_user("ann")


@pytest.fixture
def api(ann):
    """Return a client with Ann signed in."""
    client = Client()
    client.force_login(ann)
    return client


@pytest.fixture
def talk(ann):
    """Return Ann's session, which has two messages."""
    return talk_of(ann)
