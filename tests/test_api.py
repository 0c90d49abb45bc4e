"""The REST API."""

from __future__ import annotations

import json
import logging

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import include, path

from chatmemory import services
from chatmemory.models import Message, Session
from chatmemory.services import Actor
from tests.factories import BY, make_session, make_user, said

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]

urlpatterns = [path("api/", include("chatmemory.api.urls"))]

SESSIONS = "/api/sessions/"
MESSAGES = "/api/sessions/s/messages/"


@pytest.fixture
def ann():
    return make_user("ann")


@pytest.fixture
def api(ann):
    """A client in which Ann is signed in."""
    client = Client()
    client.force_login(ann)
    return client


def post(client, address, body, **headers):
    """Post a value as JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body)
    return client.post(address, data, content_type="application/json", headers=headers)


def send(client, text="hi", client_id="c1", address=MESSAGES, **fields):
    return post(client, address, {"client_id": client_id, "text": text, **fields})


def problem(answer):
    """The status and code of a refusal, and the field it names."""
    body = answer.json()
    return answer.status_code, body["code"], body.get("field")
