"""The import of LangChain's histories as a process that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings
from langchain_core.messages import message_to_dict

from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.models import Message, Session
from chatmemory.services.integrity.sessions import check_integrity
from tests.factories import make_user
from tests.imports.histories import MESSAGES, rows_of, table
from tests.servers import wait_for

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True)]

TOTAL = 100


def importing(env: dict[str, str], *source: str) -> subprocess.Popen[str]:
    options = ["--owner=ann", "--by=olga", "--reason=a move", "--json"]
    command = [sys.executable, "manage.py", "chatmemory_import_langchain", *source, *options]
    return subprocess.Popen(  # noqa: S603  # our own code
        command, cwd=django_settings.BASE_DIR, env=env, stdout=subprocess.PIPE, text=True
    )


def check_resumed(env: dict[str, str], *source: str) -> None:
    """Kill an import, and check that the next one completes it, and the one after it is idle."""
    ann = make_user("ann")
    with importing(env, *source) as process:
        wait_for(lambda: Session.objects.count() >= 20, "nothing is stored")
        process.send_signal(signal.SIGKILL)
    before = Session.objects.count()
    assert 20 <= before < TOTAL
    assert Message.stored.count() == len(MESSAGES) * before
    expected = [(TOTAL - before, before), (0, TOTAL)]
    for counts in expected:
        with importing(env, *source) as process:
            report: dict[str, Any] = json.loads(process.communicate()[0])
        assert (report["new"], report["existing"]) == counts
        assert Message.stored.count() == len(MESSAGES) * TOTAL
    for number in range(TOTAL):
        assert DjangoChatMessageHistory(f"s{number}", owner=ann).messages == MESSAGES
    assert not list(check_integrity())


@pytest.mark.database
def test_a_killed_import_of_a_table_is_completed_by_the_next_one(live_database_env):
    with table(rows_of({f"s{number}": MESSAGES for number in range(TOTAL)})):
        check_resumed(live_database_env, "--database=default")


def test_a_killed_import_of_lists_is_completed_by_the_next_one(live_database_env, redis_url):
    prefix = f"{uuid.uuid4()}:"
    texts = [json.dumps(message_to_dict(message)) for message in MESSAGES]
    keys = [f"{prefix}s{number}" for number in range(TOTAL)]
    with redis.Redis.from_url(redis_url) as client:
        for key in keys:
            client.lpush(key, *texts)
        try:
            check_resumed(live_database_env, f"--redis={redis_url}", f"--key-prefix={prefix}")
        finally:
            client.delete(*keys)
