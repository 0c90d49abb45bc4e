"""Commands that are ended early, by a reader that has read enough or by Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from django.conf import settings
from django.core.management import get_commands, load_command_class

from chatmemory import services
from chatmemory.management.interruptible import InterruptibleCommand
from tests.factories import TALK, make_session, said
from tests.servers import DEADLINE

pytestmark = pytest.mark.regression


@pytest.fixture
def export(live_database_env):
    """A process that writes more than a pipe holds, and has begun to."""
    make_session()
    for _ in range(20):
        services.append_messages(**TALK, messages=said("x" * 30_000))
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
def test_a_reader_that_has_read_enough_ends_a_command_without_a_word(export):
    export.stdout.close()
    assert export.wait(DEADLINE) == 128 + signal.SIGPIPE
    assert export.stderr.read() == b""


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_ctrl_c_ends_a_command_without_a_traceback(export):
    export.send_signal(signal.SIGINT)
    assert export.wait(DEADLINE) == 128 + signal.SIGINT
    assert export.stderr.read().split() == [b"Interrupted."]


def test_each_command_of_the_app_can_be_ended_so():
    names = [name for name, app in get_commands().items() if app == "chatmemory"]
    assert len(names) >= 10
    for name in names:
        assert isinstance(load_command_class("chatmemory", name), InterruptibleCommand), name
