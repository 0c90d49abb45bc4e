"""A process whose threads gevent or eventlet has patched runs no turn, and serves pages."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest
from django.conf import settings

from chatmemory.models import Turn
from tests.conftest import database_environment
from tests.servers import person_with_talk, start_servers

ann = person_with_talk
serve = start_servers

pytestmark = [pytest.mark.long, pytest.mark.regression, pytest.mark.django_db(transaction=True)]


def test_gunicorn_with_gevent_answers_after_a_send_that_waits(ann, serve):
    [server] = serve(program="gevent", application="project.wsgi:application")
    cookies = {settings.SESSION_COOKIE_NAME: ann.cookie, "csrftoken": "x" * 32}
    with httpx.Client(
        base_url=server.address, cookies=cookies, headers={"X-CSRFToken": "x" * 32}, timeout=60
    ) as browser:
        body = {"client_id": "c1", "text": "hi", "wait": 1}
        sent = browser.post("/api/sessions/talk/messages/", json=body)
        assert (sent.status_code, sent.json()["status"]) == (202, "waiting")
        assert browser.get("/api/sessions/").status_code == 200
        assert browser.get("/chat/~all/").status_code == 200
    assert Turn.objects.get().status == "waiting"


def test_a_check_warns_of_patched_threads():
    code = (
        "from gevent import monkey; monkey.patch_all()\nimport django; django.setup()\n"
        "from chatmemory.checks.project import check_patched_threads\n"
        "print(*(message.id for message in check_patched_threads(None)))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    found = subprocess.run(  # noqa: S603  # our own command line
        command, env=database_environment(), capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["chatmemory.W043"]
