"""Commands that a closed pipe or Ctrl-C ends early."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from django.conf import settings
from django.core.management import CommandError, get_commands, load_command_class
from django.db import ProgrammingError

from chatmemory import services
from chatmemory.management.interruptible import InterruptibleCommand
from tests.factories import TALK, make_messages, make_session
from tests.servers import DEADLINE

pytestmark = pytest.mark.regression


@pytest.fixture
def export(live_database_env):
    """Yield a process that writes more than the buffer of a pipe."""
    make_session()
    for _ in range(20):
        services.append_messages(**TALK, messages=make_messages("x" * 30_000))
    arguments = ["manage.py", "chatmemory_export", "--all", "--by=test", "--reason=test"]
    with subprocess.Popen(  # noqa: S603  # our own command line
        [sys.executable, *arguments],
        env=live_database_env,
        cwd=settings.BASE_DIR,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_reader_that_closes_the_pipe_ends_a_command_without_an_error(export):
    export.stdout.close()
    assert export.wait(DEADLINE) == 128 + signal.SIGPIPE
    assert export.stderr.read() == b""


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_a_short_output_to_a_closed_pipe_ends_a_command_without_an_error(live_database_env):
    """The output fits the buffer, which Python flushes after the command."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "manage.py", "chatmemory_recover"],
            env={**live_database_env, "PYTHONUNBUFFERED": ""},
            cwd=settings.BASE_DIR,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=DEADLINE,
            check=False,
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_ctrl_c_ends_a_command_without_a_traceback(export):
    export.send_signal(signal.SIGINT)
    assert export.wait(DEADLINE) == 128 + signal.SIGINT
    # psycopg's pool may report how it disposes of the connection of the interrupted statement.
    *others, last = filter(None, export.stderr.read().splitlines())
    assert last == b"Interrupted."
    assert all(re.match(rb"(closing|rolling back|discarding) .*connection", one) for one in others)


class Interrupted(InterruptibleCommand):
    """A command whose clean-up fails because Ctrl-C interrupted a statement."""

    error: Exception

    def handle(self, *args: object, **options: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise self.error


@pytest.mark.parametrize("kind", [ProgrammingError, CommandError])
def test_ctrl_c_ends_a_command_whose_rollback_fails_too(kind, capsys):
    command = Interrupted()
    command.error = kind("the connection is in a transaction")
    with pytest.raises(SystemExit) as ended:
        command.run_from_argv(["manage.py", "interrupted", "--skip-checks"])
    assert ended.value.code == 128 + signal.SIGINT
    assert capsys.readouterr().err.splitlines()[-1] == "Interrupted."


@pytest.mark.parametrize(
    ("kind", "expected"), [(ValueError, ValueError), (CommandError, SystemExit)]
)
def test_any_other_error_of_a_command_is_its_own(kind, expected):
    class Failing(InterruptibleCommand):
        def handle(self, *args: object, **options: object) -> None:
            raise kind("no")

    with pytest.raises(expected) as raised:
        Failing().run_from_argv(["manage.py", "failing", "--skip-checks"])
    assert getattr(raised.value, "code", 1) == 1


def test_each_command_of_the_app_is_interruptible():
    names = [name for name, app in get_commands().items() if app.startswith("chatmemory")]
    assert len(names) >= 10
    for name in names:
        assert isinstance(load_command_class(get_commands()[name], name), InterruptibleCommand), (
            name
        )
