"""The first calls in docs/reference/api-authentication.md, by a shell and curl against a server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher

from tests.factories import make_session, make_user
from tests.servers import DEADLINE, start_servers

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/api-authentication.md"
serve = start_servers


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.django_db(transaction=True)
def test_the_first_calls_log_in_and_chat(serve, tmp_path):
    mira = make_user("mira")
    # The server does not have the quick hasher of the tests.
    mira.password = PBKDF2PasswordHasher().encode("secret", "salt", iterations=1)
    mira.save()
    make_session("demo:kettle", owner=mira)
    [server] = serve()
    [script] = re.findall(r"^```sh\n(SITE=.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    script = script.replace("http://127.0.0.1:8000", server.address).replace("…", "secret")
    done = subprocess.run(  # noqa: S603  # our own page
        ["/bin/sh", "-e", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
        check=True,
    )
    decoder = json.JSONDecoder()
    listed, end = decoder.raw_decode(done.stdout)
    sent, _ = decoder.raw_decode(done.stdout[end:].lstrip())
    assert [session["key"] for session in listed["sessions"]] == ["demo:kettle"]
    assert (sent["status"], sent["messages"][0]["text"]) == ("complete", "Hello")
