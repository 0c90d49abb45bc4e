"""The responder is imported when a server starts, and its faults are in the log from then on."""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.conf import settings

from chatmemory import services, startup
from chatmemory.live.preload import preload
from chatmemory.models import Turn
from chatmemory.services import Actor
from tests.conftest import database_environment
from tests.factories import make_session, make_user
from tests.servers import Server, wait_for

pytestmark = pytest.mark.django_db  # checks read the features of the database

BOT = (
    "import sys; print('imported', file=sys.stderr)\nasync def bot(messages, session): yield 'hi'\n"
)


@pytest.fixture
def errors(caplog, settings):
    """Return a function that preloads a responder and returns what is logged."""

    def load(responder):
        caplog.clear()
        settings.CHATMEMORY = {"RESPONDER": responder}
        preload()
        assert {record.levelname for record in caplog.records} <= {"ERROR"}
        return caplog.text

    return load


@pytest.mark.parametrize("responder", ["demo", "tests.responders_for_tests.echo"])
def test_a_responder_that_can_reply_logs_nothing(errors, responder):
    assert errors(responder) == ""


@pytest.mark.regression
def test_a_misspelled_responder_is_logged_with_the_nearest_name(errors):
    assert "Did you mean echo?" in errors("tests.responders_for_tests.ecko")


@pytest.mark.regression
@pytest.mark.slow
def test_a_model_that_cannot_be_created_is_logged_with_the_cause(errors, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    text = errors("openai:gpt-5")
    assert "All replies will fail: RESPONDER 'openai:gpt-5' cannot be used" in text
    assert "OPENAI_API_KEY" in text


@pytest.mark.parametrize(
    ("arguments", "is_serving"),
    [(["manage.py", "runserver"], True), (["manage.py", "migrate"], False), (["uvicorn"], False)],
)
def test_a_check_starts_nothing_but_in_a_process_that_serves(monkeypatch, arguments, is_serving):
    monkeypatch.setattr(sys, "argv", arguments)
    with startup.inspecting():
        assert startup.is_serving() is is_serving
    assert startup.is_serving()


@pytest.mark.long
@pytest.mark.regression
@pytest.mark.parametrize("program", ["uvicorn", "daphne", "runserver"])
def test_a_server_imports_the_responder_before_it_listens(tmp_path, program):
    (tmp_path / "shop_bots.py").write_text(BOT)
    environment = {**database_environment(), "PYTHONPATH": f"{tmp_path}:{settings.BASE_DIR}"}
    server = Server(environment, tmp_path / "log", program=program, RESPONDER="shop_bots.bot")
    try:
        server.start()
        assert "imported" in server.log.read_text()
    finally:
        server.kill()


@pytest.mark.long
@pytest.mark.regression
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("program", ["uvicorn", "daphne", "gunicorn", "preloading gunicorn"])
def test_a_server_runs_the_turns_that_waited_for_it(tmp_path, program):
    session = make_session(owner=make_user())
    at = {"session_key": session.key, "by": Actor.user(session.owner)}
    services.admit_turn(**at, client_id="c1", content="hi")
    environment = {**database_environment()}
    if program == "preloading gunicorn":
        environment["GUNICORN_CMD_ARGS"] = "--preload"
    server = Server(environment, tmp_path / "log", program=program.split()[-1])
    try:
        server.start()
        turn = Turn.objects.filter(status="complete")
        wait_for(turn.exists, "no process claims it", server.log)
    finally:
        server.kill()


@pytest.mark.long
@pytest.mark.regression
def test_the_runner_creates_the_model_before_it_runs_turns():
    process = subprocess.Popen(
        [sys.executable, "manage.py", "chatmemory_runner"],
        env={**database_environment(), "OPENAI_API_KEY": "", "RESPONDER": "openai:gpt-5"},
        cwd=settings.BASE_DIR,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        lines = [process.stdout.readline()]
        while not lines[-1].startswith("Running turns as "):
            assert process.poll() is None, lines
            lines.append(process.stdout.readline())
        assert "All replies will fail" in "".join(lines)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.regression
def test_a_server_with_a_misspelled_responder_starts_and_logs_the_fault(tmp_path):
    server = Server(database_environment(), tmp_path / "log", RESPONDER="tests.speaker.anser")
    try:
        server.start()
        assert "Did you mean answer?" in server.log.read_text()
    finally:
        server.kill()


@pytest.mark.long
@pytest.mark.regression
def test_runserver_logs_a_missing_key_at_its_start(tmp_path):
    environment = {**database_environment(), "OPENAI_API_KEY": ""}
    log = tmp_path / "log"
    server = Server(environment, log, program="runserver", RESPONDER="openai:gpt-5")
    try:
        server.start()
        wait_for(lambda: "All replies will fail" in log.read_text(), "nothing is logged", log)
    finally:
        server.kill()


@pytest.mark.slow
def test_a_check_imports_no_package_of_a_provider():
    code = (
        "import sys, django; from django.core.management import call_command; django.setup(); "
        "call_command('check'); print('langchain_openai' in sys.modules)"
    )
    run = subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-c", code],
        env={**database_environment(), "RESPONDER": "openai:gpt-5"},
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines()[-1] == "False"
