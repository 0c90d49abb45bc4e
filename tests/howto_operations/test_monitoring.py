"""The examples of docs/howto/monitoring.md."""

from __future__ import annotations

import json
import logging.config
import os
import re
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from django.core.cache import cache
from pytest_django.live_server_helper import LiveServer

from chatmemory import services, signals
from chatmemory.services.turns.progress import finish_turn
from tests.blocks import block_with
from tests.conftest import missing
from tests.factories import BY, make_session
from tests.test_examples import run_example

PAGE = "docs/howto/monitoring.md"
ADDRESS = {"session_key": "talk", "scope": "server", "by": BY}


def end_turn(client_id, **ending):
    claim = services.admit_turn(**ADDRESS, client_id=client_id, content="Hi", owner="me").claim
    finish_turn(claim=claim, message={"role": "assistant", "content": "Yes"}, **ending)


@pytest.fixture
def counting():
    """Run the example, whose receiver is disconnected after the test."""
    cache.clear()
    names = run_example(PAGE, "def count_failure")
    yield names
    signals.turn_finished.disconnect(dispatch_uid="failures")
    cache.clear()


@pytest.mark.django_db(transaction=True)
def test_failed_turns_are_counted_by_their_code(counting):
    make_session("talk")
    end_turn("c1", status="complete")
    end_turn("c2", status="failed", error="model_timeout")
    end_turn("c3", status="failed", error="model_timeout")
    assert cache.get("failed.model_timeout") == 2
    assert cache.get("failed.") is None


@pytest.mark.django_db(transaction=True)
def test_the_log_has_a_line_for_each_turn(capsys):
    before = logging.getLogger("chatmemory")
    state = before.level, [*before.handlers]
    try:
        logging.config.dictConfig(run_example(PAGE, "LOGGING")["LOGGING"])
        make_session("talk")
        end_turn("c1", status="failed", error="model_timeout")
    finally:
        before.level, before.handlers = state
        before.manager._clear_cache()
    [line] = [line for line in capsys.readouterr().err.splitlines() if "chatmemory.turns" in line]
    assert "status=failed error=model_timeout" in line
    example = block_with("docs/howto/signals.md", "waited_seconds=").text
    assert re.findall(r" (\w+)=", line.partition(" turn=")[2]) == re.findall(r" (\w+)=", example)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("token", "shown"), [("secret", True), ("another", False)])
def test_a_monitor_asks_with_the_token(live_server, settings, token, shown):
    shutil.which("curl") or missing("curl is not installed")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "HEALTH_TOKEN": "secret"}
    answer = answer_to_curl("https://chat.example.com", live_server.url, token)
    assert ("sweep_age" in answer) is shown
    assert not shown or answer["database"] is True


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_monitor_asks_a_process_as_the_proxy_does(settings):
    shutil.which("curl") or missing("curl is not installed")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "HEALTH_TOKEN": "secret"}
    settings.ALLOWED_HOSTS = ["chat.example.com"]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.SECURE_SSL_REDIRECT = True
    with closing_server(LiveServer("127.0.0.1")) as server:
        answer = answer_to_curl("http://127.0.0.1:8001", server.url, "secret")
    assert "sweep_age" in answer


@contextmanager
def closing_server(server):
    """Use a server whose middleware has read the settings of the test."""
    try:
        yield server
    finally:
        server.stop()


def answer_to_curl(site, url, token):
    """Run the command of the page that asks this site, with a server of the test."""
    command = block_with("docs/howto/monitoring.md", f"{site}/chat/api/health/").text.strip()
    done = subprocess.run(  # noqa: S602  # our own page
        command.replace(f"{site}/chat", url),
        shell=True,
        env={**os.environ, "HEALTH_TOKEN": token},
        capture_output=True,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)
