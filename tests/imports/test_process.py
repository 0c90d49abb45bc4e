"""The command as a process: its memory, a kill, and many chats."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from chatmemory.models import Message, Session
from chatmemory.services.integrity.sessions import check_integrity
from tests.factories import make_user
from tests.imports.samples import gpt, gpt_message
from tests.servers import wait_for

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True)]

MEGABYTE = 2**20

CHATS = int(os.environ.get("IMPORTED_CHATS", "1000"))

# Not `resource`: a forked process begins with the highest memory of its parent there.
PROGRAM = """
import re, sys
from pathlib import Path
from django.core.management import execute_from_command_line
sys.modules["requests"] = None  # of the Agents SDK; REST framework imports it if it is there
execute_from_command_line(sys.argv)
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""
"""Runs a command, and prints the highest memory in kilobytes."""


def chats(total: int, *, messages: int = 2, text: str = "hello") -> Iterator[bytes]:
    """Yield the pieces of a file with this number of chats, in one line."""
    rows = [gpt_message(("user", "assistant")[n % 2], text, at=n) for n in range(messages)]
    for number in range(total):
        yield b"[" if number == 0 else b","
        yield json.dumps(gpt(*rows, id_=f"c{number}")).encode()
    yield b"]"


def write(file: Path, pieces: Iterator[bytes]) -> int:
    with file.open("wb") as stream:
        stream.writelines(pieces)
    return file.stat().st_size


@contextmanager
def importing(file: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    who = ["--owner=mira", "--by=olga", "--reason=a move", "--json"]
    command = [sys.executable, "-c", PROGRAM, "chatmemory_import", str(file), *who]
    with subprocess.Popen(  # noqa: S603  # our own code
        command, cwd=django_settings.BASE_DIR, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def imported(file: Path, env: dict[str, str]) -> tuple[dict[str, Any], int]:
    """Run the command to its end; return its report, and its highest memory in bytes."""
    with importing(file, env) as process:
        printed, _ = process.communicate()
    out, memory = printed.splitlines()
    report: dict[str, Any] = json.loads(out)
    return report, int(memory) * 1024


@pytest.mark.database
def test_a_killed_import_is_completed_by_the_next_one(live_database_env, tmp_path):
    make_user("mira")
    total = 300
    write(tmp_path / "export.json", chats(total, messages=6))
    with importing(tmp_path / "export.json", live_database_env) as process:
        wait_for(lambda: Session.objects.count() >= 20, "nothing is stored")
        process.send_signal(signal.SIGKILL)
    before = Session.objects.count()
    assert 20 <= before < total
    assert Message.stored.count() == 6 * before
    report, _ = imported(tmp_path / "export.json", live_database_env)
    assert (report["new"], report["existing"]) == (total - before, before)
    assert Session.objects.count() == total
    assert Message.stored.count() == 6 * total
    assert not list(check_integrity())


def test_a_file_of_72_megabytes_in_one_line_needs_less_than_200_megabytes(
    live_database_env, tmp_path
):
    make_user("mira")
    file = tmp_path / "export.json"
    size = write(file, chats(1_200, messages=20, text="Wörter \n" * 280))
    assert size > 72 * MEGABYTE
    assert b"\n" not in file.read_bytes()
    report, memory = imported(file, live_database_env)
    assert (report["new"], report["messages"]) == (1_200, 24_000)
    assert memory < 200 * MEGABYTE
    report, memory = imported(file, live_database_env)
    assert (report["new"], report["existing"]) == (0, 1_200)
    assert memory < 200 * MEGABYTE


def test_the_largest_conversation_needs_less_than_200_megabytes(live_database_env, tmp_path):
    make_user("mira")
    file = tmp_path / "export.json"
    size = write(file, chats(1, messages=2_000, text="a b c d \n" * 1_600))
    assert size > 28 * MEGABYTE
    report, memory = imported(file, live_database_env)
    assert report["messages"] == 2_000
    assert memory < 200 * MEGABYTE


def test_many_chats_are_imported(live_database_env, tmp_path):
    make_user("mira")
    write(tmp_path / "export.json", chats(CHATS))
    report, memory = imported(tmp_path / "export.json", live_database_env)
    assert (report["new"], report["messages"]) == (CHATS, 2 * CHATS)
    assert Session.objects.count() == CHATS
    assert memory < 200 * MEGABYTE
    report, _ = imported(tmp_path / "export.json", live_database_env)
    assert (report["new"], report["existing"]) == (0, CHATS)
